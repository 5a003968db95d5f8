"""A short run of chaos with a seed that nobody has seen, as a user starts it; HEADRACE_CHAOS_SEED plays one again."""

import json
import os
import secrets
import subprocess
import sys
from pathlib import Path

import pytest

pytestmark = [pytest.mark.slow, pytest.mark.timeout(900)]


def test_chaos_loses_and_doubles_nothing(tmp_path: Path) -> None:
    seed = os.environ.get("HEADRACE_CHAOS_SEED") or str(secrets.randbelow(2**31))
    form = ("delta", "parquet")[int(seed) % 2]
    command = [sys.executable, "-m", "writer.cli", "chaos", "--seed", seed, "--minutes", "1", "--format", form]
    ended = subprocess.run(
        [*command, "--keep", str(tmp_path / "stage"), "--json"], capture_output=True, text=True, check=False
    )
    assert ended.returncode == 0, f"seed {seed}\n{ended.stderr}\n{ended.stdout}"
    found = json.loads(ended.stdout)
    assert found["clean"]
    assert found["produced"] == found["held"] + found["taken"] + found["died"] > 0
