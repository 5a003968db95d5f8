"""Long lists of a commit's files, which lie beside the log."""

import json
import tempfile
from collections import Counter
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest

from headrace.writer.core.offsets import TopicPartition
from headrace.writer.maintenance.vacuum import find_unneeded, remove
from headrace.writer.storage.local import LocalStore
from headrace.writer.table.log import file_lists
from headrace.writer.table.log.foreign_writes import CommitFailed
from tests.support.route_targets import RouteTables, files, list_files

pytestmark = pytest.mark.usefixtures("scratch")  # a vacuum removes what it finds

PART = TopicPartition("t", 1, 0)
HOURLY = {"type": "event_time", "width": timedelta(hours=1), "zone": "UTC"}


def test_a_long_list_of_files_lies_beside_the_log_and_is_applied_from_there(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    places = [str(tmp_path / name) for name in "ab"]
    one = RouteTables(tmp_path, {"targets": dict(zip("ab", places, strict=True))})
    one.commit(*places)
    assert list_files(tmp_path) == [], "a short list stands in the entry"
    monkeypatch.setattr(file_lists, "INLINE_MAX", 100)
    one.commit(*places)
    (kept,) = list_files(tmp_path)
    entry = tmp_path / "log" / "_delta_log" / f"{one.tables.main.snapshot().version:020}.json"
    about = json.loads(json.loads(entry.read_text().splitlines()[0])["commitInfo"]["headrace"])
    assert about["side_files"] == {place: [] for place in places}
    assert about["side_files_at"]["bytes"] == kept.stat().st_size
    soon = datetime.now(UTC) + timedelta(days=99)
    waste = find_unneeded(one.config, "p", None, soon)
    assert not [one.path for place in waste for one in place.waste if "/lists/" in one.path], "it is needed"
    again = RouteTables(tmp_path, {"targets": dict(zip("ab", places, strict=True))})
    assert [files(place) for place in places] == [2, 2]
    again.commit(places[0])
    again.tables.apply_side_files()
    again.commit(places[0])  # its entry says that all before it is applied
    waste = find_unneeded(one.config, "p", None, soon)
    assert f"_headrace/lists/{kept.name}" in {one.path for place in waste for one in place.waste}, "all is applied"
    assert [files(place) for place in places] == [3, 2]


def test_vacuum_removes_lists_again_and_again_and_reads_few(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The dead-letter table has no commit, and three targets have an old one: none needs what is long applied."""
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    monkeypatch.setattr(file_lists, "INLINE_MAX", 100)
    busy, *quiet = places = [str(tmp_path / name) for name in "abcd"]
    one = RouteTables(tmp_path, {"targets": dict(zip("abcd", places, strict=True))})
    soon, reads, read = datetime.now(UTC) + timedelta(days=99), Counter[str](), LocalStore.read

    def counted(store: LocalStore, path: str) -> Any:
        reads[path] += path.startswith(file_lists.FOLDER)
        return read(store, path)

    one.commit(*places)
    for _ in range(3):
        for _ in range(2):
            one.tables.apply_side_files()
            one.commit(busy)
        with monkeypatch.context() as patch:
            patch.setattr(LocalStore, "read", counted)
            found = find_unneeded(one.config, "p", None, soon)
        gone = [waste.path for place in found for waste in place.waste]
        assert len(gone) == 2
        assert all(path.startswith(file_lists.FOLDER) for path in gone)
        remove(found)
    assert max(reads.values()) <= 2, "once for the log, and once for all tables beside it"
    assert [files(place) for place in quiet] == [1, 1, 1]
    one.tables.apply_side_files()
    assert files(busy) == 7


@pytest.mark.parametrize("damage", ["gone", "other"])
def test_a_list_that_is_damaged_stops_with_a_sentence_and_loses_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, damage: str
) -> None:
    place = str(tmp_path / "a")
    monkeypatch.setattr(file_lists, "INLINE_MAX", 100)
    one = RouteTables(tmp_path, {"targets": {"a": place}})
    one.commit(place)
    (kept,) = list_files(tmp_path)
    content = kept.read_bytes()
    kept.write_bytes(content.replace(b"2026", b"2025")) if damage == "other" else kept.unlink()
    with pytest.raises(CommitFailed, match=r"the list of files .*lists/.* is not (there|what was written)"):
        RouteTables(tmp_path, {"targets": {"a": place}})
    assert files(place) == 0
    kept.write_bytes(content)
    RouteTables(tmp_path, {"targets": {"a": place}})
    assert files(place) == 1
