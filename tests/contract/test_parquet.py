"""What readers of a Parquet table see when its writer dies, at every moment; and by which names they find its rows."""

import threading
from collections import Counter
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from typing import Any
from uuid import uuid4

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given, strategies as st

from headrace.writer.batch.staging.bucket_folders import hive_folder, hive_value
from headrace.writer.batch.staging.parquet_files import Destination
from headrace.writer.core.errors import ConfigError
from headrace.writer.core.files import StagedFile, staged_name
from headrace.writer.core.offsets import OffsetRange, TopicPartition
from headrace.writer.storage.base import Store
from headrace.writer.storage.locations import store_at
from headrace.writer.table.log.foreign_writes import CommitFailed, ForeignChange
from headrace.writer.table.log.operations.rows import Batch
from headrace.writer.table.parquet import LOG, Parquet
from headrace.writer.table.table import PipelineTable
from tests.support import hive_readers
from tests.support.lake_stores import BUCKETS, new_home
from tests.support.table_formats import parquet_table

PART = TopicPartition("clicks", 1, 0)
IDS = {"clicks": ["uuid-1"]}
COLUMNS = pa.schema([("id", pa.int64()), ("hour", pa.string())])
NOON = datetime(2026, 11, 20, 12, tzinfo=UTC)
_EFFECTS = {"put", "put_if_absent", "move", "copy", "delete"}


class Died(BaseException):
    """The process is gone: nothing catches it."""


@dataclass
class Life:
    """How many moments a writer has left: there is one before and one after each effect on its stores."""

    left: int
    lock: threading.Lock = field(default_factory=threading.Lock)

    def moment(self) -> None:
        with self.lock:
            self.left -= 1
            if self.left < 0:
                raise Died

    def store(self, location: str) -> Store:
        return Mortal(self, store_at(location))  # type: ignore[return-value]

    def table(self, location: str) -> PipelineTable:
        form = Parquet(self.store(location), self.store(f"{location}/{LOG}"))
        return PipelineTable(form, "events", checkpoint_interval=2)


class Mortal:
    """A store whose user may die before and after each effect."""

    def __init__(self, life: Life, store: Store) -> None:
        self._life, self._store = life, store

    def __getattr__(self, name: str) -> Any:
        method = getattr(self._store, name)
        if name not in _EFFECTS:
            return method

        def call(*args: Any, **more: Any) -> Any:
            self._life.moment()
            answer = method(*args, **more)
            self._life.moment()
            return answer

        return call


EITHER = [
    "local",
    *(pytest.param(kind, marks=pytest.mark.slow) for kind in BUCKETS),
]  # some hundred requests for each moment


@pytest.fixture(params=["local", *BUCKETS])
def location(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    return f"{new_home(request, request.param, tmp_path)}/lake"


def staged(location: str, start: int, end: int, hour: str | None = "2026-11-20T05") -> StagedFile:
    """Write a file with the ids [start, end), as a task does."""
    to = Destination(store_at(location), ("hour",), "test", 2**20, hidden=True)
    path, sink = to.open((hour,))
    with pq.ParquetWriter(sink, pa.schema([("id", pa.int64())])) as out:
        out.write_table(pa.table({"id": range(start, end)}))
    size = sink.tell()
    sink.close()
    return StagedFile(path, (hour,), end - start, size, "{}", NOON, NOON, {("clicks", 0): end - start})


def batch(epoch: int, start: int, end: int, *files: StagedFile) -> Batch:
    return Batch(uuid4().hex, epoch, [OffsetRange(PART, start, end)], files, facts={"ranges": []})


def carried(table: PipelineTable, location: str) -> None:
    """Live the life of a writer: a start, two batches over three buckets, a new column, the log's checkpoint."""
    table.create(COLUMNS, ["hour"])
    epoch = table.begin({PART: 0}, IDS)
    offset = table.snapshot().frontier(PART) or 0
    for _ in range(2):
        cuts = {"a": (offset, offset + 2), "b": (offset + 2, offset + 3), None: (offset + 3, offset + 5)}
        files = [staged(location, *cut, hour) for hour, cut in cuts.items()]
        table.append(batch(epoch, offset, offset + 5, *files), table.snapshot())
        table.tidy()
        table.grow([pa.field("price", pa.float64())], epoch)
        offset += 5


def ids(location: str) -> list[int]:
    """Return what readers see."""
    return (
        sorted(hive_readers.read_rows(location)["id"].to_pylist())
        if "id" in hive_readers.read_rows(location).column_names
        else []
    )


@pytest.mark.parametrize("location", EITHER, indirect=True)
def test_whenever_a_writer_dies_readers_see_only_what_is_committed_and_the_next_start_shows_the_rest(
    location: str,
) -> None:
    moments = 0
    ended = False
    while not ended:
        copy_location, moments = f"{location}-{moments}", moments + 1
        corrupt = staged_name(f"{uuid4().hex}.parquet")
        store_at(copy_location).put(corrupt, b"PAR1, and then the task was gone")
        try:
            carried(Life(moments).table(copy_location), copy_location)
            ended = True
        except Died:
            pass
        heir = parquet_table(copy_location, "events")
        committed = heir.snapshot().frontier(PART) or 0 if heir.exists() else 0
        seen = ids(copy_location)
        assert len(seen) == len(set(seen)), f"moment {moments}: twice"
        assert set(seen) <= set(range(committed)), f"moment {moments}: not committed"
        assert committed - len(seen) <= 5, f"moment {moments}: more than the newest entry is hidden"
        carried(heir, copy_location)
        assert ids(copy_location) == list(range(committed + 10)), f"moment {moments}"
        left = [name for name in store_at(copy_location).list("_headrace/staged") if not corrupt.endswith(name)]
        assert len(left) in (0, 3), f"moment {moments}: committed files are left staged"  # 3: of a batch that was none
    assert moments > 30


def test_a_copy_whose_original_was_not_deleted_any_more_is_made_again(location: str) -> None:
    """S3 has no rename: between its two requests a file is in both places."""
    table = parquet_table(location, "events")
    table.create(COLUMNS, ["hour"])
    epoch = table.begin({PART: 0}, IDS)
    files = [staged(location, 0, 3, "a"), staged(location, 3, 5, "b")]
    store = store_at(location)
    table.put(table.snapshot(), _entry(table, batch(epoch, 0, 5, *files)))  # and then it died while it published
    store.copy(staged_name(files[0].path), files[0].path)
    assert ids(location) == [0, 1, 2]
    parquet_table(location, "events").begin({}, IDS)
    assert ids(location) == [0, 1, 2, 3, 4]
    assert list(store.list("_headrace/staged")) == []


def _entry(table: PipelineTable, planned: Batch) -> Any:
    from headrace.writer.table.log.entries import write_actions
    from headrace.writer.table.log.snapshot import app_id

    values = {app_id("events", r.part): r.end for r in planned.ranges}
    about = {"kind": "batch", "id": planned.id, "side_files": {}, **planned.facts}
    return write_actions(table.snapshot().state, planned.files, values, about)


def test_a_writer_that_was_replaced_while_it_published_harms_no_other(location: str) -> None:
    table = parquet_table(location, "events")
    table.create(COLUMNS, ["hour"])
    epoch = table.begin({PART: 0}, IDS)
    table.put(table.snapshot(), _entry(table, batch(epoch, 0, 5, staged(location, 0, 5))))
    version = table.snapshot().state.table_version
    heir = parquet_table(location, "events")
    epoch = heir.begin({}, IDS)
    heir.append(batch(epoch, 5, 7, staged(location, 5, 7)), heir.snapshot())
    table._format.publish(version)  # it wakes up
    assert ids(location) == list(range(7))


def test_a_committed_file_that_is_gone_stops_the_start_with_a_sentence(location: str) -> None:
    table = parquet_table(location, "events")
    table.create(COLUMNS, ["hour"])
    epoch = table.begin({PART: 0}, IDS)
    file = staged(location, 0, 5)
    table.put(table.snapshot(), _entry(table, batch(epoch, 0, 5, file)))
    store_at(location).delete(staged_name(file.path))
    with pytest.raises(ForeignChange, match=f"{file.path} is committed, but it is neither there nor staged"):
        parquet_table(location, "events").begin({}, IDS)


def test_a_file_that_is_removed_once_it_was_published_stops_no_writer(location: str) -> None:
    """As old buckets are, some day, by who keeps house."""
    table = parquet_table(location, "events")
    table.create(COLUMNS, ["hour"])
    file = staged(location, 0, 5)
    epoch = table.begin({PART: 0}, IDS)
    table.append(batch(epoch, 0, 5, file), table.snapshot())
    store_at(location).delete(file.path)
    heir = parquet_table(location, "events")
    epoch = heir.begin({}, IDS)
    heir.append(batch(epoch, 5, 7, staged(location, 5, 7)), heir.snapshot())
    assert ids(location) == [5, 6]


@pytest.mark.parametrize("noted", [b"", b"[]", b"{", b'{"table": 1, "version": 99}', b'{"version": "x"}'])
def test_a_note_of_what_is_published_that_is_nonsense_hides_nothing(tmp_path: Path, noted: bytes) -> None:
    location = str(tmp_path / "lake")
    table = parquet_table(location, "events")
    table.create(COLUMNS, ["hour"])
    epoch = table.begin({PART: 0}, IDS)
    table.put(table.snapshot(), _entry(table, batch(epoch, 0, 5, staged(location, 0, 5))))
    store_at(location).put("_headrace/published.json", noted)
    parquet_table(location, "events").begin({}, IDS)
    assert ids(location) == list(range(5))


def test_a_storage_that_fails_while_files_are_published_is_a_clear_failure(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    location = str(tmp_path / "lake")
    table = parquet_table(location, "events")
    table.create(COLUMNS, ["hour"])
    epoch = table.begin({PART: 0}, IDS)
    planned = batch(epoch, 0, 5, staged(location, 0, 5))

    def down(*_: object) -> bool:
        raise OSError("503 slow down")

    monkeypatch.setattr(table._format.store, "move", down)  # type: ignore[attr-defined]
    with pytest.raises(CommitFailed, match=r"version 2 .* is committed, but its files are not all in their place: 503"):
        table.append(planned, table.snapshot())
    monkeypatch.undo()
    parquet_table(location, "events").begin({}, IDS)
    assert ids(location) == list(range(5))


def test_a_reader_who_never_stops_looking_sees_whole_files_one_after_the_other(tmp_path: Path) -> None:
    location = str(tmp_path / "lake")
    table = parquet_table(location, "events")
    table.create(COLUMNS, ["hour"])
    epoch = table.begin({PART: 0}, IDS)

    def write() -> None:
        for offset in range(0, 400, 10):
            files = [staged(location, offset, offset + 4, "a"), staged(location, offset + 4, offset + 10, "b")]
            table.append(batch(epoch, offset, offset + 10, *files), table.snapshot())

    writer = threading.Thread(target=write)
    writer.start()
    before: set[object] = set()
    while writer.is_alive() or not before:
        ids = [row[0] for row in hive_readers.query(location, "id")]
        now = set(ids)
        files = Counter((id_ // 10, id_ % 10 >= 4) for id_ in ids)  # type: ignore[operator]
        assert len(now) == len(ids)
        assert before <= now
        assert all(rows == (6 if second else 4) for (_, second), rows in files.items())
        before = now
    writer.join()
    assert hive_readers.query(location, "count(DISTINCT id), max(id)") == [(400, 399)]


def test_a_checkpoint_leads_to_the_same_state_and_leaves_every_entry(location: str) -> None:
    table = parquet_table(location, "events", checkpoint_interval=3)
    table.create(COLUMNS, ["hour"])
    epoch = table.begin({PART: 7}, IDS)
    table.grow([pa.field("größe", pa.float64())], epoch)
    for offset in range(7, 27, 2):
        table.append(batch(epoch, offset, offset + 2, staged(location, offset, offset + 2)), table.snapshot())
        table.tidy()
    snapshot, fresh = table.snapshot(), parquet_table(location, "events").snapshot()
    assert fresh.state.table_version == snapshot.state.table_version
    assert (fresh.frontier(PART), fresh.epoch, fresh.incarnations()) == (27, 1, IDS)
    assert fresh.columns().equals(snapshot.columns())
    assert fresh.columns().names == ["id", "hour", "größe"]
    names = sorted(store_at(table.log_location).list())
    entries = [name for name in names if name[0].isdigit() and "checkpoint" not in name]
    assert entries == [f"{n:020}.json" for n in range(snapshot.version + 1)]
    checkpoints = [name for name in names if ".checkpoint." in name]
    assert len(checkpoints) == 2
    assert len(parquet_table(location, "events").history()) == 13  # one for each version
    store_at(table.log_location).put(checkpoints[-1], b"{torn")
    assert parquet_table(location, "events").snapshot().frontier(PART) == 27


def test_files_of_another_client_keep_a_table_from_being_made(location: str) -> None:
    store_at(location).put("hour=2026-11-20T05/theirs.parquet", b"PAR1")
    with pytest.raises(ConfigError, match=r"holds hour=2026-11-20T05/, which readers would take for a part"):
        parquet_table(location, "events").create(COLUMNS, ["hour"])


# ---- names


ODD = [
    *map(chr, range(1, 128)), "a/b", "a=b", "50 %", "%2F", "a+b", "ü 𝄞", "..", "null", "05",
    "2026-11-20", "true", "\u2028", "\x85", "é", "e\u0301", "x" * 240, "x" * 260, "ü" * 130,
]  # fmt: skip


def test_every_reader_finds_the_buckets_value_in_the_folders_name(tmp_path: Path) -> None:
    location = str(tmp_path)
    values = [None, *ODD]
    table = parquet_table(location, "events")
    table.create(COLUMNS, ["hour"])
    epoch = table.begin({PART: 0}, IDS)
    files = [staged(location, index, index + 1, value) for index, value in enumerate(values)]
    table.append(batch(epoch, 0, len(values), *files), table.snapshot())
    shown = [None if value is None else hive_value(hive_folder("hour", value)) for value in values]
    cut = [value for value, shown_value in zip(values, shown, strict=True) if value != shown_value]
    assert cut == ["x" * 260, "ü" * 130]
    arrow = dict(zip(*(hive_readers.read_rows(location)[name].to_pylist() for name in ("id", "hour")), strict=True))
    assert [arrow[offset] for offset in range(len(values))] == shown
    duck = dict(hive_readers.query(location, "id, hour"))
    assert [duck[offset] for offset in range(len(values))] == shown
    assert set(table.buckets()) == {(value,) for value in shown}


@given(st.text(st.characters(exclude_categories=["Cs"], exclude_characters="\0"), min_size=1, max_size=300))
def test_a_folders_name_says_the_value_or_a_part_of_it_with_a_digest(value: str) -> None:
    folder = hive_folder("hour", value)
    folder_value = hive_value(folder)
    assert folder_value is not None
    assert folder_value == value or (value.startswith(folder_value[:-17]) and len(folder.encode()) > 200)
    assert len(folder.encode()) <= 255
    assert not set(folder.removeprefix("hour=")) & set("/=\\?#")


@pytest.mark.parametrize("value", ["x" * 246, "ü" * 200, "/" * 100])
def test_a_value_too_long_for_a_folder_is_cut_and_stays_apart_from_others(value: str) -> None:
    first, other = hive_folder("hour", value + "1"), hive_folder("hour", value + "2")
    assert first != other
    assert max(len(first.encode()), len(other.encode())) <= 255
    assert value.startswith(str(hive_value(first)).rpartition("~")[0])


def test_the_empty_text_is_null_as_everywhere() -> None:
    assert hive_folder("hour", "") == hive_folder("hour", None) == "hour=__HIVE_DEFAULT_PARTITION__"
    assert hive_value("hour=__HIVE_DEFAULT_PARTITION__/") is None
