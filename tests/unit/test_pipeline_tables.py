"""The tables of one pipeline: what redo applies to which."""

import threading
import time
from collections.abc import Collection, Mapping
from datetime import UTC, datetime
from types import SimpleNamespace

import pytest

from headrace.writer.core.files import StagedFile
from headrace.writer.core.offsets import TopicPartition
from headrace.writer.table import pipeline_tables
from headrace.writer.table.log.entries import CommittedEntry, SideEntry
from headrace.writer.table.log.foreign_writes import CommitFailed
from headrace.writer.table.log.log import TableVersion
from headrace.writer.table.log.snapshot import TargetRecord
from headrace.writer.table.pipeline_tables import Tables

NOON = datetime(2026, 11, 20, 12, tzinfo=UTC)


def staged(rows: int) -> StagedFile:
    return StagedFile(f"{rows}.parquet", (), rows, 100 * rows, "{}", NOON, NOON, {})


class Main:
    """As much of a table as redo reads."""

    version, settled = 9, 4
    location = "/main"
    side_table_ids: Mapping[str, str] = {}
    state = SimpleNamespace(table_version=TableVersion("id", 9))

    def __init__(self, *targets: str) -> None:
        self.known = {n: TargetRecord(place, place, "delta") for n, place in enumerate(targets)}

    def snapshot(self) -> "Main":
        return self

    def targets(self) -> dict[int, TargetRecord]:
        return self.known

    @property
    def targets_by_location(self) -> dict[str, TargetRecord]:
        return {one.location: one for one in self.known.values()}

    def publish(self, table_version: TableVersion) -> None:
        assert table_version == TableVersion("id", 9)

    def commits_since(self, version: int, despite: Collection[int] = ()) -> list[CommittedEntry]:  # noqa: ARG002 - none is here
        listed = {5: {"/dead": [staged(1)]}, 7: {}, 10: {"/dead": [staged(2)], "/late": [staged(3)]}, 11: {}}
        gone = {11: {"/dead": {TopicPartition("clicks", 1, 0): [(3, 4)]}}}
        return [CommittedEntry(v, str(v), {}, files, gone.get(v, {})) for v, files in listed.items() if v > version]


def test_redo_applies_what_newer_commits_list_each_to_its_table():
    applied: list[tuple[str, int, int, int]] = []
    opened: list[str] = []

    class Side:
        def __init__(self, location: str, _: object) -> None:
            self.location = location
            opened.append(location)

        def snapshot(self) -> SimpleNamespace:
            return SimpleNamespace(applied=-1)

        def apply_side(self, entry: SideEntry) -> None:
            assert not entry.of_target
            rows = sum(file.rows for file in entry.files)
            applied.append((self.location, entry.version, rows, len(entry.withdrawn)))

    tables = Tables(Main(), Side)
    tables.apply_side_files()
    assert tables.settled == 11
    assert applied == [("/dead", 5, 1, 0), ("/dead", 10, 2, 0), ("/dead", 11, 0, 1), ("/late", 10, 3, 0)]
    applied.clear()
    tables.apply_side_files()
    assert (tables.settled, applied) == (11, [])
    assert opened == ["/dead", "/late"]  # each once, so that it follows its log


def test_a_target_that_refuses_falls_behind_alone_and_catches_up_in_order(monkeypatch):
    now_s = [100.0]
    monkeypatch.setattr(pipeline_tables.time, "monotonic", lambda: now_s[0])
    applied: list[tuple[str, int]] = []
    refusing = {"/late"}

    class Side:
        def __init__(self, location: str, _: object) -> None:
            self.location = location

        store = SimpleNamespace(mark=lambda _: (1,))  # each file is there

        def snapshot(self) -> SimpleNamespace:
            return SimpleNamespace(applied=-1)

        def apply_side(self, entry: SideEntry) -> None:
            if self.location in refusing:
                raise CommitFailed(f"{self.location} takes nothing")
            assert entry.of_target == (self.location == "/late")
            applied.append((self.location, entry.version))

    tables = Tables(Main("/late"), Side)
    tables.apply_side_files()
    assert (tables.settled, tables.behind) == (9, {"/late": "/late takes nothing"})
    assert applied == [("/dead", 5), ("/dead", 10), ("/dead", 11)]
    refusing.clear()
    tables.apply_side_files()
    assert (tables.settled, tables.behind, tables.is_retry_due) == (9, {"/late": "/late takes nothing"}, False), (
        "it rests"
    )
    assert applied[3:] == [], "each entry is read and applied once, however long a table refuses"
    now_s[0] += 2
    assert tables.is_retry_due
    tables.apply_side_files()
    assert (tables.settled, tables.behind, tables.is_retry_due) == (11, {}, False)
    assert applied[3:] == [("/late", 10)]


def test_an_error_that_is_no_refusal_of_a_storage_ends_the_pipeline():
    class Side:
        def __init__(self, location: str, _: object) -> None:
            self.location = location

        store = SimpleNamespace(mark=lambda _: (1,))

        def snapshot(self) -> SimpleNamespace:
            return SimpleNamespace(applied=-1)

        def apply_side(self, entry: SideEntry) -> None:
            if entry.of_target:
                raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        Tables(Main("/late"), Side).apply_side_files()


@pytest.mark.parametrize(("table_format", "together"), [("delta", 32), ("parquet", 32), ("iceberg", 8)])
def test_many_targets_are_applied_to_at_once_and_fewer_where_one_catalog_takes_them(table_format, together):
    # It breaks unless so many threads come at the same time.
    barrier = threading.Barrier(together)
    lock = threading.Lock()
    running, running_max = 0, 0

    class Side:
        def __init__(self, location: str, _: object) -> None:
            self.location = location

        def apply_side(self, entry: SideEntry) -> None:
            nonlocal running, running_max
            assert entry.of_target
            with lock:
                running += 1
                running_max = max(running_max, running)
            barrier.wait(10)
            time.sleep(0.01)
            with lock:
                running -= 1

    locations = [f"/{number}" for number in range(2 * together)]
    log = Main(*locations)
    log.known = {number: target._replace(format=table_format) for number, target in log.known.items()}
    side_files = {location: [staged(1)] for location in locations}
    log.commits_since = lambda version, _: [CommittedEntry(5, "5", {}, side_files)] if version < 5 else []
    tables = Tables(log, Side)
    tables._applied_locations.update(locations)
    tables.apply_side_files()
    assert (tables.behind, tables.settled) == ({}, 9)
    assert running_max == together
