"""Runs of chaos, as a user starts them: a short one with a fresh seed, and those that tests/fault/REPORT.md tells.

HEADRACE_CHAOS_SEED plays a short one again.
"""

import json
import os
import secrets
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from tests.fault import outcomes

pytestmark = pytest.mark.slow


@pytest.mark.timeout(900)
def test_chaos_loses_and_doubles_nothing(tmp_path: Path) -> None:
    seed = int(os.environ.get("HEADRACE_CHAOS_SEED") or secrets.randbelow(2**31))
    play_chaos(seed, 1, tmp_path)


@pytest.mark.timeout(3600)
@pytest.mark.parametrize("seed", [1, 2, 3, 4, 5])
def test_ten_minutes_of_chaos_lose_and_double_nothing(tmp_path: Path, seed: int) -> None:
    found = play_chaos(seed, 10, tmp_path)
    outcomes.put("chaos", str(seed), {name: found[name] for name in outcomes.CHAOS})


def play_chaos(seed: int, minutes: int, root: Path) -> dict[str, Any]:
    """Play a seed; even ones on Delta, odd ones on Parquet."""
    form = ("delta", "parquet")[seed % 2]
    command = [
        sys.executable,
        "-m",
        "headrace.writer.cli",
        "chaos",
        f"--seed={seed}",
        f"--minutes={minutes}",
        "--format",
        form,
    ]
    ended = subprocess.run(
        [*command, "--keep", str(root / "stage"), "--json"], capture_output=True, text=True, check=False
    )
    assert ended.returncode == 0, f"seed {seed}\n{ended.stderr}\n{ended.stdout}"
    found: dict[str, Any] = json.loads(ended.stdout)
    assert found["clean"]
    assert found["produced"] == found["held"] + found["taken"] + found["died"] > 0
    return {**found, "format": form}
