"""The tables of one pipeline: what redo applies to which."""

from collections.abc import Collection
from datetime import UTC, datetime
from types import SimpleNamespace

from writer.core.files import StagedFile
from writer.core.offsets import TopicPartition
from writer.table.factory import Tables
from writer.table.log.entries import CommittedEntry

NOON = datetime(2026, 11, 20, 12, tzinfo=UTC)


def staged(rows: int) -> StagedFile:
    return StagedFile(f"{rows}.parquet", (), rows, 100 * rows, "{}", NOON, NOON, {})


class Main:
    """As much of a table as redo reads."""

    version, settled = 9, 4
    state = SimpleNamespace(place=("id", 9))

    def snapshot(self) -> "Main":
        return self

    def publish(self, place: tuple[str, int]) -> None:
        assert place == ("id", 9)

    def commits_since(self, version: int, despite: Collection[int] = ()) -> list[CommittedEntry]:  # noqa: ARG002 - none is here
        listed = {5: {"/dead": [staged(1)]}, 7: {}, 10: {"/dead": [staged(2)], "/late": [staged(3)]}, 11: {}}
        gone = {11: {"/dead": {TopicPartition("clicks", 1, 0): [(3, 4)]}}}
        return [CommittedEntry(v, str(v), {}, files, gone.get(v, {})) for v, files in listed.items() if v > version]


def test_redo_applies_what_newer_commits_list_each_to_its_table():
    applied: list[tuple[str, int, int, int]] = []
    opened: list[str] = []

    class Side:
        def __init__(self, location: str) -> None:
            self.location = location
            opened.append(location)

        def apply_side(self, version, files, withdrawn, why="") -> None:  # noqa: ARG002
            applied.append((self.location, version, sum(file.rows for file in files), len(withdrawn)))

    tables = Tables(Main(), Side)
    tables.apply_side_files()
    assert tables.settled == 11
    assert applied == [("/dead", 5, 1, 0), ("/dead", 10, 2, 0), ("/late", 10, 3, 0), ("/dead", 11, 0, 1)]
    applied.clear()
    tables.apply_side_files()
    assert (tables.settled, applied) == (11, [])
    assert opened == ["/dead", "/late"]  # each once, so that it follows its log
