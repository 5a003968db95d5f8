"""Times that people write: each option and key reads them alike, of UTC where they have no zone."""

import ast
from collections.abc import Callable
from datetime import UTC, datetime, timedelta, timezone
from pathlib import Path
from typing import Any

import pytest
import typer
import yaml
from hypothesis import given, strategies as st
from pydantic import TypeAdapter, ValidationError

from headrace.writer.clients import kafka_sample
from headrace.writer.config.sections.topic_selection import start_position
from headrace.writer.core.errors import ConfigError
from headrace.writer.core.text import instant as show_instant
from headrace.writer.core.units import parse_instant
from headrace.writer.output.cli_options import time_of, version_or_time
from headrace.writer.preflight.testing.case_file import Instant

ROOT = Path(__file__).parents[2]
FIVE = datetime(2026, 11, 20, 5, tzinfo=UTC)
# Reads a text as an option or a key does.
READERS: dict[str, Callable[[str], Any]] = {
    "--since, --until": lambda text: time_of("--since", text),
    "--to, --since of a version or a time": lambda text: version_or_time("--to", text),
    "--from of preview": kafka_sample.position,
    "start.timestamp": lambda text: start_position({"timestamp": text})["timestamp"],
    "start.timestamp, read by YAML": lambda text: start_position(yaml.safe_load(f"timestamp: {text}"))["timestamp"],
    "a time of a test file": TypeAdapter(Instant).validate_python,
}
# Where texts of people come in. Elsewhere times are read that headrace or another program wrote.
FOLDERS = ("writer/cli", "writer/output", "writer/config", "recovery/cli", "autoscaler", "bench")
# They read what the driver and the supervisor answer, and an outbox.
READERS_OF_OURS = {
    "autoscaler/runtime/collector.py",
    "autoscaler/runtime/status_parser.py",
    "writer/cli/maintain/hooks.py",
}


@pytest.fixture(params=list(READERS))
def read(request: pytest.FixtureRequest) -> Callable[[str], Any]:
    return READERS[request.param]


@pytest.mark.parametrize(
    "text",
    [
        "2026-11-20T05:00:00",
        "2026-11-20T05:00:00Z",
        "2026-11-20T05:00:00+00:00",
        "2026-11-20T07:30:00+02:30",
        "2026-11-19 21:00:00-08:00",
        show_instant(FIVE),
    ],
)
def test_a_time_without_a_zone_is_of_utc_everywhere(read: Callable[[str], Any], text: str) -> None:
    assert read(text) == FIVE


def test_a_date_is_its_first_moment_everywhere(read: Callable[[str], Any]) -> None:
    assert read("2026-11-20") == datetime(2026, 11, 20, tzinfo=UTC)


@pytest.mark.parametrize("text", ["yesterday", "20 November 2026", "0001-01-01T00:00:00+14:00"])
def test_what_is_no_time_is_refused_with_an_example_everywhere(read: Callable[[str], Any], text: str) -> None:
    with pytest.raises((ConfigError, ValueError, ValidationError, typer.BadParameter), match="2026-11-20T"):
        read(text)


@given(
    st.datetimes(datetime(1970, 1, 3), datetime(2200, 1, 1)),  # noqa: DTZ001 - the zone is drawn beside it
    st.none() | st.integers(-14 * 60, 14 * 60).map(lambda minutes: timezone(timedelta(minutes=minutes))),
)
def test_a_zone_counts_where_there_is_one(time: datetime, zone: timezone | None) -> None:
    expected = time.replace(tzinfo=zone or UTC)
    for written in (time.replace(tzinfo=zone), time.replace(tzinfo=zone).isoformat()):
        parsed = parse_instant(written)
        assert parsed == expected
        assert parsed.utcoffset() == timedelta(0)


def test_no_command_and_no_key_reads_a_time_by_itself() -> None:
    modules = [path for folder in FOLDERS for path in (ROOT / folder).rglob("*.py")]
    assert modules
    calls = [
        path.relative_to(ROOT).as_posix()
        for path in modules
        for node in ast.walk(ast.parse(path.read_text()))
        if isinstance(node, ast.Attribute) and node.attr in ("fromisoformat", "strptime")
    ]
    assert set(calls) == READERS_OF_OURS
