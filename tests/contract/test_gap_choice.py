"""A gap is found by its id, and a commit by an offset, in whichever pipeline has it."""

import json
from datetime import UTC, datetime
from pathlib import Path

import pytest
from typer.testing import CliRunner, Result

from headrace.recovery.cli.fix.gap_choice import AmbiguousGap
from headrace.writer.cli.main import app
from headrace.writer.config.loader import load
from headrace.writer.core.errors import HeadraceError
from headrace.writer.core.offsets import OffsetRange, TopicPartition
from headrace.writer.table.backfill_locks import BackfillLocked, BackfillLocks
from headrace.writer.table.gap_records import NoSuchGap, gap_records, open_gap
from headrace.writer.table.log.operations.gaps import Gap
from tests.support.backfill_gaps import values, write_archive
from tests.support.local_driver import Driver, log
from tests.support.sample_records import EVENT, NOW

# By the pipeline that has it.
GAPS = {"clicks": "3f2a" + 28 * "0", "orders": "3f2a" + 28 * "1"}
SECOND_GAP = "4f1c" + 28 * "1"


class Lake:
    """Three pipelines of one file: two with rows up to 20 and a gap up to 30, and one that has no table yet."""

    def __init__(self, root: Path) -> None:
        self.root = root
        self.file = root / "headrace.yaml"
        schema = root / "1.avsc"
        schema.write_text(json.dumps(EVENT))
        pipelines = {
            name: {
                "topics": [name],
                "table": {"location": str(root / "lake" / name)},
                "event_time": {"field": "at", "max_age": "30000 d"},
            }
            for name in (*GAPS, "views")
        }
        document = {
            "kafka": {"bootstrap_servers": "127.0.0.1:1"},
            "checkpoints": str(root / "checkpoints"),
            "registry": {"files": {1: str(schema)}},
            "pipelines": pipelines,
        }
        self.file.write_text(json.dumps(document))
        config = load(self.file)
        self.drivers = {name: Driver(root, configuration=config, name=name, topic=name) for name in GAPS}
        for name, driver in self.drivers.items():
            driver.start()
            driver.carry([log(values(0, 20), topic=name)], {0: 20})
            self.open_gap(name, GAPS[name], 20, 30)

    def open_gap(self, name: str, gap_id: str, start: int, end: int) -> None:
        driver = self.drivers[name]
        offset_range = OffsetRange(TopicPartition(name, 1, 0), start, end)
        facts = {"run": 1, "at": NOW.isoformat(), "hints": [], "by": "ann", "reason": "a test", "topic_ids": {}}
        gap = Gap(gap_id, driver.epoch, [offset_range], "latest", facts)
        open_gap(driver.table, name, driver.table.snapshot(), gap)

    def archive(self) -> Path:
        """Write an archive of the records of all gaps. Returns where it lies."""
        for name in GAPS:
            path = write_archive(self.root, values(20, 40), folder=f"topic={name}", topic=name)
        return path

    def run(self, command: str, *arguments: str) -> Result:
        return CliRunner().invoke(app, [*command.split(), str(self.file), *arguments], env={"COLUMNS": "160"})

    def states(self) -> dict[str, str]:
        """Return the state of each gap, by its id."""
        return {
            gap: record.state
            for name, driver in self.drivers.items()
            for gap, record in gap_records(driver.table, name).items()
        }


@pytest.fixture
def lake(tmp_path: Path) -> Lake:
    return Lake(tmp_path)


@pytest.mark.parametrize("name", GAPS)
@pytest.mark.parametrize("length", [5, 32])
def test_a_backfill_finds_the_pipeline_of_a_gap_and_leaves_the_others_alone(lake: Lake, name: str, length: int) -> None:
    flags = ["--gap", GAPS[name][:length], "--from-archive", str(lake.archive()), "--json"]
    preview = lake.run("backfill", *flags)
    assert preview.exit_code == 0, preview.exception
    (estimate,) = [json.loads(line) for line in preview.stdout.splitlines()]
    assert (estimate["pipeline"], [gap["gap"] for gap in estimate["gaps"]]) == (name, [GAPS[name]])
    done = lake.run("backfill", *flags, "--yes")
    assert done.exit_code == 0, done.exception
    lines = [json.loads(line) for line in done.stdout.splitlines() if line.startswith("{")]
    assert {line["pipeline"] for line in lines} == {name}
    assert lake.states() == {gap: "done" if gap == GAPS[name] else "open" for gap in GAPS.values()}


def test_gaps_of_several_pipelines_are_filled_in_one_backfill(lake: Lake) -> None:
    lake.open_gap("orders", SECOND_GAP, 30, 40)
    gaps = [word for gap in (SECOND_GAP, GAPS["clicks"], SECOND_GAP[:6]) for word in ("--gap", gap)]
    done = lake.run("backfill", *gaps, "--from-archive", str(lake.archive()), "--yes")
    assert done.exit_code == 0, done.exception
    assert lake.states() == {GAPS["clicks"]: "done", GAPS["orders"]: "open", SECOND_GAP: "done"}


@pytest.mark.parametrize("name", GAPS)
def test_a_gap_is_shown_and_closed_with_the_name_of_its_pipeline(lake: Lake, name: str) -> None:
    gap = GAPS[name][:6]
    shown = lake.run("gaps show", gap, "--json")
    assert (json.loads(shown.stdout)["pipeline"], json.loads(shown.stdout)["id"]) == (name, GAPS[name])
    assert f"pipeline    {name}\n" in lake.run("gaps show", gap).output
    preview = lake.run("gaps close", gap, "--reason", "gone")
    assert f"{name}: 10 offsets of gap {GAPS[name][:8]} would be" in preview.output
    closed = lake.run("gaps close", gap, "--reason", "gone", "--yes", "--json")
    assert json.loads(closed.stdout)["pipeline"] == name
    assert lake.states() == {gap: "lost" if gap == GAPS[name] else "open" for gap in GAPS.values()}


WITH_GAP = [
    ("backfill", ["--gap"], []), ("backfill", ["--gap"], ["--yes"]), ("gaps show", [], []),
    ("gaps close", [], ["--reason", "gone"]), ("gaps close", [], ["--reason", "gone", "--yes"]),
]  # fmt: skip


@pytest.mark.parametrize(("command", "before", "after"), WITH_GAP)
def test_the_beginning_of_several_gaps_names_each_with_its_pipeline(lake: Lake, command, before, after) -> None:
    refused = lake.run(command, *before, "3f2a", *after)
    assert isinstance(refused.exception, AmbiguousGap)
    assert str(refused.exception) == (
        "'3f2a' is the beginning of several gaps: 3f2a0000 of clicks, 3f2a1111 of orders. Give more of the id."
    )
    assert set(lake.states().values()) == {"open"}
    assert lake.run("gaps show", "3f2a", "--pipeline", "orders").exit_code == 0


@pytest.mark.parametrize(("command", "before", "after"), WITH_GAP)
def test_a_gap_that_no_pipeline_has_is_said_of_each(lake: Lake, command, before, after) -> None:
    arguments = [*before, "abcdef", *after]
    unread = lake.run(command, *arguments)
    sentences = [
        "'abcdef' is no gap of pipeline 'clicks'; there are: 3f2a0000. `headrace gaps list` shows them.",
        "'abcdef' is no gap of pipeline 'orders'; there are: 3f2a1111. `headrace gaps list` shows them.",
    ]
    assert type(unread.exception) is HeadraceError
    text = str(unread.exception).split("\nheadrace: ")
    # It may be a gap of the table that cannot be read.
    assert text[:2] == sentences
    assert "pipeline 'views' has no table" in text[2]
    refused = lake.run(command, *arguments, "--pipeline", "clicks", "--pipeline", "orders")
    assert isinstance(refused.exception, NoSuchGap)
    assert str(refused.exception).split("\nheadrace: ") == sentences


def test_the_outcome_of_a_pipeline_is_shown_where_the_next_one_fails(lake: Lake) -> None:
    # A process of another machine fills it.
    BackfillLocks(lake.drivers["orders"].table.store).acquire(GAPS["orders"], "bob/elsewhere/7", datetime.now(UTC))
    gaps = [word for gap in GAPS.values() for word in ("--gap", gap)]
    failed = lake.run("backfill", *gaps, "--from-archive", str(lake.archive()), "--yes", "--json")
    assert isinstance(failed.exception, BackfillLocked)
    lines = [json.loads(line) for line in failed.stdout.splitlines() if line.startswith("{")]
    assert [(line["event"], line["pipeline"]) for line in lines] == [("chunk", "clicks"), ("ended", "clicks")]
    assert lines[-1]["gaps"][0]["state"] == "done"


@pytest.mark.parametrize("name", GAPS)
def test_an_offset_is_explained_by_the_pipelines_that_read_it(lake: Lake, name: str) -> None:
    arguments = ["--offset", f"{name}/0:7", "--pipeline", "clicks", "--pipeline", "orders", "--json"]
    shown = lake.run("explain", *arguments)
    assert shown.exit_code == 0, shown.exception
    assert list(json.loads(shown.stdout)["pipelines"]) == [name]


def test_an_offset_that_no_pipeline_has_read_is_said_of_each(lake: Lake) -> None:
    refused = lake.run("explain", "--offset", "views/0:7", "--pipeline", "clicks", "--pipeline", "orders")
    assert [sentence[:50] for sentence in str(refused.exception).split("\nheadrace: ")] == [
        f"the table of pipeline {name!r} has no commit with views/0:7"[:50] for name in GAPS
    ]


def test_a_table_that_cannot_be_read_is_said_beside_the_offset_that_another_has(lake: Lake) -> None:
    shown = lake.run("explain", "--offset", "clicks/0:7", "--json")
    assert list(json.loads(shown.stdout)["pipelines"]) == ["clicks"]
    assert "pipeline 'views' has no table" in str(shown.exception)
