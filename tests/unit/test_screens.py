"""Every screen draws its figures from one document: the same figure under the same name, or that it is not known."""

import re
from dataclasses import replace
from datetime import timedelta
from io import StringIO
from typing import Any

import pytest
from rich.console import Console, RenderableType

from headrace.writer.output import fleet_screen
from headrace.writer.output.status_screen import line, screen
from headrace.writer.output.tables import show
from headrace.writer.status.collection import check_code, exit_code
from headrace.writer.status.document import Source, document
from headrace.writer.status.model import View
from headrace.writer.status.progress import Progress
from headrace.writer.web.metrics_export import families
from tests.support.pipeline_states import NOW, healthy, pipeline_states

STATES = pipeline_states()
OF_LAKE = [view for name, view in STATES.items() if name.startswith("lake")]


def described(view: View) -> dict[str, Any]:
    source: Source = "lake" if view in OF_LAKE else "driver"
    pipeline: dict[str, Any] = document([view], NOW, source)["pipelines"]["clicks"]
    return pipeline


def printed(renderable: RenderableType, width: int = 240) -> str:
    out = StringIO()
    show(renderable, Console(file=out, width=width, highlight=False))
    return out.getvalue()


def terminal_lines(pipeline: dict[str, Any]) -> dict[str, str]:
    """Return the lines of `headrace status`, by their labels."""
    text = printed(screen({"pipelines": {"clicks": pipeline}}))
    rows = re.findall(r"^  ([a-z ]+?)  +(.*?)\s*$", text, re.MULTILINE)
    return {"headline": text.splitlines()[0], **dict(rows)}


def metrics(view: View) -> dict[str, float]:
    """Return the numbers that a scraper gets, summed over their labels."""
    progress = Progress("clicks")
    progress._view = view
    sums: dict[str, float] = {}
    for family in families({"clicks": progress}, NOW):
        for sample in family.samples:
            sums[sample.name] = sums.get(sample.name, 0) + sample.value
    return sums


def number(text: str) -> int:
    """Return the first number of a text; none and no are 0."""
    match = re.search(r"\d[\d,]*", text)
    return 0 if match is None else int(match[0].replace(",", ""))


@pytest.fixture(params=list(STATES))
def state(request: pytest.FixtureRequest) -> str:
    return str(request.param)


def test_the_lag_is_the_same_everywhere_or_not_known(state: str) -> None:
    view = STATES[state]
    pipeline = described(view)
    offsets = pipeline["lag"]["offsets"]
    text = terminal_lines(pipeline)["lag"]
    row = next(fleet_screen.rows({"": {"pipelines": {"clicks": pipeline}}}, "", "worst").__iter__())
    fleet = printed(fleet_screen.fleet([row]))
    in_pipe = re.search(r"lag_offsets=(\d+)", line("clicks", pipeline, "x"))
    if offsets is None:
        assert text.startswith("not known")
        assert (pipeline["lag"]["at"] is None) or " since 2026-11-20 11:50:00 UTC" in text
        assert re.search(r"clicks +\S+ +\?", fleet)
        assert in_pipe is None
        assert metrics(view).get("headrace_lag_source_age_seconds", 0) > 60
    else:
        assert number(text) == offsets
        assert in_pipe is not None
        assert int(in_pipe[1]) == offsets
        assert metrics(view)["headrace_lag_offsets"] == offsets


def test_rows_and_dead_letters_are_those_of_the_tables(state: str) -> None:
    view = STATES[state]
    pipeline = described(view)
    lines = terminal_lines(pipeline)
    scraped = metrics(view)
    assert pipeline["table"]["dead_letters"] == 17
    assert number(lines["dead letters"]) == 17
    assert scraped["headrace_dead_letter_rows"] == 17
    if pipeline["targets"]:
        assert "table" not in lines
        assert "headrace_table_rows" not in scraped
    else:
        assert number(lines["table"]) == pipeline["table"]["rows"] == scraped["headrace_table_rows"] == 1_200_000
    assert ("counted 10 min ago" in lines.get("table", "")) is (state == "storage down")


def test_counts_since_the_start_say_so(state: str) -> None:
    view = STATES[state]
    lines = terminal_lines(described(view))
    rows = 0 if state == "fresh restart" else 400
    assert lines["this start"].startswith(f"{rows:,} rows in ")
    assert "since the start" in lines["dead letters"]
    hook = lines["hook druid"]
    assert hook.startswith("40 delivered")
    assert ("since the start" in hook) is (view not in OF_LAKE)


def test_an_open_gap_is_the_same_everywhere(state: str) -> None:
    view = STATES[state]
    pipeline = described(view)
    scraped = metrics(view)
    assert scraped["headrace_gaps_open"] == pipeline["gaps"]["count"]
    assert scraped["headrace_gap_offsets_open"] == pipeline["gaps"]["offsets"]
    text = terminal_lines(pipeline).get("gaps", "")
    assert ("1 gap open, 300 offsets, Kafka holds them, `headrace backfill` brings them" in text) is (
        state == "gap open"
    )
    assert ("1 open gap" in pipeline["health"]["reasons"]) is (state == "gap open")


@pytest.mark.parametrize(
    ("name", "level", "reason"),
    [
        ("healthy", "ok", ""),
        ("fresh restart", "ok", ""),
        ("halted", "critical", "HALTED since 2026-11-20 11:51:00 UTC: another writer holds the table: epoch 4"),
        ("fenced", "critical", "failed: another writer holds the table: epoch 4"),
        ("waits for its lease", "warning", "waits since 2026-11-20 11:51:00 UTC: host/7 has its lease since"),
        ("held for a schema", "warning", "the batch waits for schema id 11 until 2026-11-20 12:02:00 UTC"),
        ("registry 401", "warning", "the batch waits for schema id 11: the registry refuses the login (401)"),
        ("paused", "warning", "paused"),
        ("retention waits", "warning", "a shorter retention waits for `headrace retention --yes`"),
        ("gap open", "warning", "1 open gap"),
        ("storage down", "critical", "failed: cannot write to s3://lake/clicks: it does not answer"),
        ("no Kafka", "warning", "Kafka has not answered for 10 min"),
        ("route of three tables", "ok", ""),
        ("lake without a driver", "warning", "no driver runs it"),
        ("lake of a halted pipeline", "critical", "HALTED since 2026-11-20 11:51:00 UTC: another writer holds"),
    ],
)
def test_the_health_says_what_is_wrong(name: str, level: str, reason: str) -> None:
    pipeline = described(STATES[name])
    assert pipeline["health"]["level"] == level
    assert any(text.startswith(reason) for text in pipeline["health"]["reasons"]) is bool(reason)
    row = fleet_screen.rows({"": {"pipelines": {"clicks": pipeline}}}, "", "worst")
    assert reason in printed(fleet_screen.fleet(row))
    assert reason in printed(fleet_screen.verdicts(row))
    in_pipe = line("clicks", pipeline, "x")
    assert f" health={level} " in f"{in_pipe} "
    assert reason in in_pipe


def test_a_retention_that_waits_is_the_same_everywhere(state: str) -> None:
    view = STATES[state]
    pipeline = described(view)
    waits = pipeline["retention_waits"] or []
    assert [wait["rows"] for wait in waits] == ([1_100_000] if state == "retention waits" else [])
    assert metrics(view)["headrace_retention_waits"] == len(waits)
    text = terminal_lines(pipeline).get("old buckets", "")
    assert text == "".join(wait["text"] for wait in waits)
    assert (
        "retention 4 d would drop 36 buckets (1,100,000 rows, 11.0 MiB, from 2026-10-11 12:00:00 UTC on)" in text
    ) is (state == "retention waits")


def test_a_pause_says_since_when_and_by_whom_in_the_same_words() -> None:
    view = STATES["paused"]
    pipeline = described(view)
    assert pipeline["pause"]["text"] == "since 2026-11-20 11:00:00 UTC by ada: a migration"
    assert terminal_lines(pipeline)["paused"] == pipeline["pause"]["text"]
    assert metrics(view)["headrace_paused"] == 1


def test_the_lake_and_a_driver_show_lines_of_the_same_names() -> None:
    with_driver = terminal_lines(described(STATES["fresh restart"]))
    without = terminal_lines(described(STATES["lake without a driver"]))
    assert without.keys() <= with_driver.keys() | {"trouble"}, "a driver shows no less"


def test_a_count_of_another_client_is_not_known() -> None:
    view = healthy()
    assert view.contents is not None
    unknown = replace(view, contents=replace(view.contents, rows=None, dead_letters=None))
    assert terminal_lines(described(unknown))["table"].startswith("rows of another client, who does not say how many")
    assert "headrace_table_rows" not in metrics(unknown)
    assert metrics(unknown)["headrace_table_files"] == view.contents.files, "another client's files are counted"


def test_a_count_from_before_the_last_commit_says_so() -> None:
    view = healthy()
    assert view.contents is not None
    assert view.committed_at is not None
    stale = replace(view, contents=replace(view.contents, counted_at=view.committed_at - timedelta(seconds=9)))
    lines = terminal_lines(described(stale))
    assert lines["table"].endswith(", counted 39 s ago, before the last commit")
    assert lines["dead letters"].startswith("17 records in their table, counted 39 s ago, before the last commit; ")
    fresh = terminal_lines(described(view))
    assert "counted" not in fresh["table"] + fresh["dead letters"]


@pytest.mark.parametrize("width", [80, 120])
def test_every_state_fits_its_width(state: str, width: int) -> None:
    text = printed(screen({"pipelines": {"clicks": described(STATES[state])}}), width)
    assert all(len(row) <= width for row in text.splitlines())


def test_a_wait_for_another_process_is_no_decision_of_a_person() -> None:
    view = STATES["waits for its lease"]
    pipeline = described(view)
    text = printed(screen({"pipelines": {"clicks": pipeline}}))
    assert text.startswith("clicks  WAITS since 2026-11-20 11:51:00 UTC: host/7 has its lease since ")
    assert "it goes on by itself when that process has ended" in text
    assert "HALTED" not in text
    assert "trouble" not in text
    assert pipeline["halted"] is None
    assert exit_code({"pipelines": {"clicks": pipeline}}) == check_code({"pipelines": {"clicks": pipeline}}) == 0
    assert metrics(view)["headrace_lease_waits"] == 1
    assert all(metrics(other)["headrace_lease_waits"] == 0 for other in STATES.values() if other is not view)
