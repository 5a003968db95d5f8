"""DuckDB with its extensions for Iceberg, Delta and clouds, in a process of its own."""

import json
import os
import subprocess
import sys
from collections.abc import Mapping, Sequence
from typing import Any

from tests.servers import parts

_PROGRAM = """
import json, pathlib, sys
sys.path.insert(0, sys.argv[1])
import duckdb
db = duckdb.connect(config={"allow_unsigned_extensions": "true"})
for name in sys.argv[2:]:
    (file,) = pathlib.Path(sys.argv[1], f"duckdb_extension_{name}").rglob("*.duckdb_extension")
    db.execute(f"LOAD '{file}'")
for statement in json.load(sys.stdin):
    found = db.execute(statement).fetchall()
print(json.dumps(found, default=str))
"""


def ask(
    statements: Sequence[str],
    extensions: Sequence[str] = ("httpfs", "avro", "aws", "iceberg"),
    env: Mapping[str, str] | None = None,
) -> list[tuple[Any, ...]]:
    """Run statements. Returns the rows of the last. INSTALL and LOAD are left out: the extensions are there.

    `env`: variables of the process beside those of this one.
    """
    queries = [statement for statement in statements if not statement.startswith(("INSTALL ", "LOAD "))]
    done = subprocess.run(
        [sys.executable, "-c", _PROGRAM, str(parts.duckdb_extensions()), *extensions],
        env={**os.environ, **(env or {})},
        input=json.dumps(queries),
        capture_output=True,
        text=True,
        timeout=400,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    return [tuple(row) for row in json.loads(done.stdout)]
