"""A backfill beside a real writer."""

import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

from tests.support import oracle
from tests.support.writer_process import Site, Writer
from writer.audit.audit import audit
from writer.config.loader import load

MakeTopic = Callable[..., str]


COMMAND = "from writer.cli.main import main; main()"


def headrace(site: Site, *words: object, code: int = 0, env: dict[str, str] | None = None) -> str:
    """Run a verb in a process of its own, as a person does."""
    at = 2 if words[0] == "gaps" else 1
    said = [str(word) for word in (*words[:at], site.config, *words[at:])]
    done = subprocess.run(
        [sys.executable, "-c", COMMAND, *said], capture_output=True, text=True, timeout=300, check=False,
        env={**os.environ, **(env or {})},
    )  # fmt: skip
    assert done.returncode == code, f"exit code {done.returncode}, expected {code}:\n{done.stdout}{done.stderr}"
    return done.stdout


def check_offsets(site: Site, lake: Path, name: str) -> None:
    """Assert that each offset is there once, by the oracle and by a deep audit."""
    oracle.check(lake, "events", site.ends(name))
    found = audit(load(site.config), "events", since=None, deep=True)
    assert found.adds_up, found.problems


def start_writer(site: Site, name: str, lake: Path) -> Writer:
    """Start the writer; it reads on at the end."""
    writer = site.start()
    writer.until(lambda: "pipeline_started" in writer.output())
    site.fill(name, 200, seed=9)
    writer.until(lambda: writer.commits() >= 1)
    oracle.check_rows(lake, "events")
    return writer
