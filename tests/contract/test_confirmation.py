"""Every command that removes or rewrites shows what it would do, and does it with --yes; all by one decorator."""

import inspect
import json
import os
import pty
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest
import typer
from typer.testing import CliRunner

from headrace.writer.cli.main import app
from tests.support.backfill_gaps import skip_offsets, values, write_archive
from tests.support.local_driver import Driver, log
from tests.support.sample_records import EVENT, NOW, WIDER, event, value

LONG_AGO = datetime(2020, 2, 29, 12, tzinfo=UTC)
# Commands that remove and rewrite nothing. Of these `pause` and `resume` write a mark that the other one
# takes back, and `init` a file where none is; the autoscaler, the supervisor, `demo`, `chaos`, `bench` and
# `shadow` run processes.
KEEPING = {
    "audit", "autoscaler explain", "autoscaler run", "bench", "buckets", "chaos", "ddl", "demo", "diff", "dlq list",
    "dlq show", "doctor", "explain", "gaps list", "gaps show", "hooks list", "hooks run", "init",
    "keys check", "limit", "pause", "preview", "privacy list", "resume", "schema plan", "shadow",
    "simulate", "size", "status", "supervisor explain", "supervisor run", "validate", "wait",
}  # fmt: skip


def commands(group: Any, *above: str) -> Iterator[tuple[str, Any]]:
    """Return every command of the CLI by its words."""
    for name, command in group.commands.items():
        if hasattr(command, "commands"):
            yield from commands(command, *above, name)
        else:
            yield " ".join((*above, name)), command


COMMANDS = dict(commands(typer.main.get_command(app)))
# It does its work without --yes, which accepts a shorter retention as well.
ACCEPTING = {"reload"}
ASKING = COMMANDS.keys() - KEEPING - ACCEPTING


def test_the_commands_that_keep_everything_are_commands_and_have_no_yes() -> None:
    assert COMMANDS.keys() >= KEEPING
    for command in KEEPING:
        assert "--yes" not in {option for parameter in COMMANDS[command].params for option in parameter.opts}, command


@pytest.mark.parametrize("words", sorted(ASKING))
def test_every_other_command_asks_by_the_decorator_of_commands(words: str) -> None:
    options = {option: parameter for parameter in COMMANDS[words].params for option in parameter.opts}
    assert {"--yes", "--dry-run"} <= options.keys()
    assert (options["--yes"].default, options["--dry-run"].default) == (False, False)
    body = inspect.unwrap(COMMANDS[words].callback)
    # The decorator of commands gives one that writes both options, and asks.
    assert "write" in inspect.signature(body).parameters


@pytest.fixture
def place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A lake in which there is something to do for each of the commands below, and its configuration."""
    monkeypatch.setenv("TMPDIR", str(tmp_path))  # what others spilled on this machine is not looked at
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    driver = Driver(tmp_path)
    driver.start(1)
    driver.carry([log({offset: event(offset, event_time=LONG_AGO) for offset in range(4)})], {0: 4}, now=LONG_AGO)
    for version in (4, 10):
        driver.carry([log({n: event(n, event_time=NOW) for n in range(version, version + 6)})], {0: version + 6})
    unknown = value(2, WIDER, {"id": 16, "at": NOW, "note": None, "extra": 2})
    driver.carry([log({16: unknown})], {0: 17})
    skip_offsets(driver, 40)
    write_archive(tmp_path, values(17, 40))
    orphan = Path(driver.lake) / "hour=2020-02-29T12" / "orphan.parquet"
    orphan.write_bytes(b"of a task that died")
    os.utime(orphan, (LONG_AGO.timestamp(), LONG_AGO.timestamp()))
    for number, schema in ((1, EVENT), (2, WIDER)):
        (tmp_path / f"{number}.avsc").write_text(json.dumps(schema))
    (tmp_path / "checkpoints" / "clicks" / "000003").mkdir(parents=True)
    (tmp_path / "headrace.yaml").write_text(json.dumps({
        "kafka": {"bootstrap_servers": "127.0.0.1:1"}, "checkpoints": str(tmp_path / "checkpoints"),
        "registry": {"files": {number: str(tmp_path / f"{number}.avsc") for number in (1, 2)}},
        "pipelines": {"clicks": {
            "topics": ["clicks"], "table": {"location": driver.lake}, "retention": "30000 d",
            "event_time": {"field": "at", "max_age": "30000 d"},
        }},
    }))  # fmt: skip
    return tmp_path


def contents(root: Path) -> dict[str, bytes]:
    files = [path for top in ("lake", "checkpoints") for path in (root / top).rglob("*") if path.is_file()]
    return {str(path): path.read_bytes() for path in files}


def line(place: Path, words: str) -> list[str]:
    """Return the arguments of a command over the lake."""
    gap = CliRunner().invoke(app, ["gaps", "list", str(place / "headrace.yaml"), "--json"]).stdout
    more: dict[str, list[str]] = {
        "delete-rows": ["--where", "id = 3"], "seal": ["2020-02-29T12"],
        "backfill": ["--from-archive", str(place / "archive")], "run": ["--new-run"],
        "gaps close": [json.loads(gap)["pipelines"]["clicks"][0]["id"], "--reason", "a test"],
    }  # fmt: skip
    return [*words.split(), str(place / "headrace.yaml"), *more.get(words, [])]


HERE = ["backfill", "compact", "delete-rows", "dlq replay", "gaps close", "retention", "run", "seal", "vacuum"]


@pytest.mark.parametrize("words", HERE)
def test_without_yes_and_a_terminal_it_is_shown_and_nothing_changes(place: Path, words: str) -> None:
    if words == "retention":
        path = place / "headrace.yaml"
        path.write_text(path.read_text().replace('"retention": "30000 d"', '"retention": "400 d"').replace(
            '"max_age": "30000 d"', '"max_age": "300 d"'))  # fmt: skip
    before, arguments = contents(place), line(place, words)
    for flags in ([], ["--dry-run"], ["--yes", "--dry-run"]):
        shown = CliRunner().invoke(app, [*arguments, *flags])
        assert shown.exit_code == 0, (shown.output, shown.exception)
        assert shown.output.endswith("\nNothing was changed. The same with --yes does it.\n")
        assert contents(place) == before
    if "--json" in {option for parameter in COMMANDS[words].params for option in parameter.opts}:
        shown = CliRunner().invoke(app, [*arguments, "--json"])
        assert (shown.exit_code, json.loads(shown.stdout) != [], contents(place)) == (0, True, before)
    if words != "run":  # which would start Spark
        result = CliRunner().invoke(app, [*arguments, "--yes"])
        assert result.exit_code == 0, (result.output, result.exception)
        assert "Nothing was changed" not in result.output
        assert contents(place) != before


@pytest.mark.parametrize(("answer", "flags", "removed"), [("n", [], 0), ("y", [], 1), ("y", ["--dry-run"], 0)])
def test_on_a_terminal_a_person_is_asked(place: Path, answer: str, flags: list[str], removed: int) -> None:
    before = contents(place)
    ours, theirs = pty.openpty()
    os.write(ours, f"{answer}\n".encode())
    command = [sys.executable, "-m", "headrace.writer.cli", *line(place, "vacuum"), *flags]
    done: Any = subprocess.run(command, stdin=theirs, stdout=theirs, stderr=subprocess.PIPE, timeout=400, check=False)
    text = os.read(ours, 65_536).decode()
    os.close(ours)
    os.close(theirs)
    assert done.returncode == 0, done.stderr
    assert ("Do it? [y/N]" in text) == (not flags)
    assert ("Nothing was changed." in text) == (not removed)
    assert len(before) - len(contents(place)) == removed
