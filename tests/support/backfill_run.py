"""A backfill beside a real writer."""

import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

from headrace.writer.audit.audit import audit
from headrace.writer.config.loader import load
from tests.support import exit_codes, oracle
from tests.support.writer_process import Site, Writer

MakeTopic = Callable[..., str]


COMMAND = "from headrace.writer.cli.main import main; main()"


def headrace(site: Site, *arguments: object, code: int = 0, env: dict[str, str] | None = None) -> str:
    """Run a verb in a process of its own, as a person does."""
    verb_words = 2 if arguments[0] == "gaps" else 1
    command = [str(word) for word in (*arguments[:verb_words], site.config, *arguments[verb_words:])]
    process = subprocess.run(
        [sys.executable, "-c", COMMAND, *command],
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
        env={**os.environ, **(env or {})},
    )
    assert process.returncode == code, (
        f"exit code {process.returncode}, expected {code}:\n{process.stdout}{process.stderr}"
    )
    exit_codes.check(command, code)
    return process.stdout


def check_offsets(site: Site, table: Path, name: str) -> None:
    """Assert that each offset is there once, by the oracle and by a deep audit."""
    oracle.check(table, "events", site.ends(name))
    result = audit(load(site.config), "events", since=None, deep=True)
    assert result.adds_up, result.problems


def start_writer(site: Site, name: str, table: Path) -> Writer:
    """Start the writer; it reads on at the end."""
    writer = site.start()
    writer.until(lambda: "pipeline_started" in writer.output())
    site.fill(name, 200, seed=9)
    writer.until(lambda: writer.commits() >= 1)
    oracle.check_rows(table, "events")
    return writer
