"""What a commit of records leaves behind where its rows go to the tables of a route."""

from functools import partial
from pathlib import Path
from uuid import uuid4

import pytest

from headrace.writer.batch.task import Piece
from headrace.writer.core.offsets import TopicPartition
from headrace.writer.maintenance.local_pipeline import open_local_pipeline
from headrace.writer.maintenance.record_commit import RecordCommit
from headrace.writer.table.log.foreign_writes import CommitFailed, Overtaken
from headrace.writer.table.log.operations.rows import Replay
from tests.support.local_driver import log
from tests.support.route_targets import BY_HEADER, RouteTables
from tests.support.sample_records import EVENT, NOW, Schemas, event

NAMES = ("a", "b")


class RoutedLake:
    """A route by a header to two tables, and nine records for them: the last one has no header, so no table."""

    def __init__(self, root: Path, form: str) -> None:
        self.root = root
        target = {"location": str(root / "targets" / "{name}")}
        if form == "iceberg":
            target["name"] = "shop.{name}"
        part = TopicPartition("clicks", 1, 0)
        self.route = RouteTables(root, {**BY_HEADER, "targets": {"*": target}}, form=form, parts=(part,))
        self.route.learn(*NAMES)
        self.files_before = self.files()
        self.tables = self.route.tables
        self.snapshot = self.tables.main.snapshot()
        self.pipeline = open_local_pipeline("p", self.route.config, Schemas({1: EVENT}, [1]), tables=self.tables)

    def files(self) -> set[Path]:
        """Return the files of rows and dead letters, also those that wait for a commit."""
        paths = (path for suffix in ("parquet", "staged") for path in self.root.rglob(f"*.{suffix}"))
        return {path for path in paths if "_delta_log" not in path.parts}

    def run_task(self, commit: RecordCommit) -> None:
        headers = {offset: {"type": NAMES[offset % 2].encode()} for offset in range(8)}
        records = log({offset: event(offset) for offset in range(9)}, headers=headers)
        incarnations = {"clicks": 1}
        build_plan = partial(self.pipeline.task_plan, NOW, "again", incarnations)
        commit.run_task(incarnations, lambda _: [Piece(records)], lambda _: build_plan())

    def build_operation(self, commit: RecordCommit) -> Replay:
        moves = commit.moves({part: {"rows": 0, "dead_letters": 9} for part in commit.counts})
        facts = {
            "started": NOW.isoformat(),
            "moves": [{**vars(part), **exits} for part, exits in moves.items()],
            "letters": 9,
            **commit.row_facts(),
        }
        generation = self.snapshot.replays
        files = commit.report.files
        return Replay(
            uuid4().hex, generation, files, commit.side_files, {}, facts, commit.meanings, commit.privacy_version
        )

    def commit_records(self) -> None:
        with RecordCommit(self.tables, self.pipeline) as commit:
            self.run_task(commit)
            commit.append(partial(self.build_operation, commit), self.snapshot)

    def interrupt_after_task(self) -> None:
        with RecordCommit(self.tables, self.pipeline) as commit:
            self.run_task(commit)
            assert len(self.files()) >= len(self.files_before) + len(NAMES) + 1
            raise KeyboardInterrupt

    def rows(self) -> list[int]:
        """Count the rows of each table of the route, then the dead letters."""
        locations = [str(self.root / "targets" / name) for name in NAMES]
        locations.append(self.route.config.pipelines["p"].dead_letters)
        return [self.tables.side(location).rows().count_rows() for location in locations]


@pytest.fixture
def lake(tmp_path: Path, form: str) -> RoutedLake:
    return RoutedLake(tmp_path, form)


def test_the_second_of_two_commits_leaves_no_file_in_any_table(lake: RoutedLake) -> None:
    lake.commit_records()
    files = lake.files()
    assert lake.rows() == [4, 4, 1]
    with pytest.raises(Overtaken):
        lake.commit_records()
    assert lake.files() == files
    assert lake.rows() == [4, 4, 1]


def test_an_interruption_before_the_entry_leaves_no_file_in_any_table(lake: RoutedLake) -> None:
    with pytest.raises(KeyboardInterrupt):
        lake.interrupt_after_task()
    assert lake.files() == lake.files_before


@pytest.mark.parametrize(
    "error", [CommitFailed("no answer"), KeyboardInterrupt()], ids=lambda error: type(error).__name__
)
def test_files_of_an_entry_whose_answer_was_lost_come_to_each_table_once(
    lake: RoutedLake, error: BaseException, monkeypatch: pytest.MonkeyPatch
) -> None:
    append = lake.tables.main.append

    def lose_answer(*arguments: object) -> None:
        append(*arguments)  # type: ignore[arg-type]
        raise error

    with monkeypatch.context() as patch:
        patch.setattr(lake.tables.main, "append", lose_answer)
        with pytest.raises(type(error)):
            lake.commit_records()
    lake.tables.apply_side_files()
    assert lake.rows() == [4, 4, 1]
    lake.tables.apply_side_files()
    assert lake.rows() == [4, 4, 1]
