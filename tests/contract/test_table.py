"""What every table format promises. One suite, every adapter."""

from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from pathlib import Path
from uuid import uuid4

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from deltalake import DeltaTable, Field

from tests import hive
from tests.servers.objects import ObjectServer
from writer.errors import ConfigError, Fenced
from writer.rooms.columnar import Destination, StagedFile
from writer.rooms.statistics import delta_statistics
from writer.stores.location import delta_options, store_at
from writer.tables.changes import Adoption, Batch, Gap
from writer.tables.errors import CommitFailed, ForeignChange
from writer.tables.formats import OPENED
from writer.tables.parquet import Parquet
from writer.tables.parts import Part, Range
from writer.tables.table import PipelineTable

P0, P1 = Part("clicks", 1, 0), Part("clicks", 1, 1)
COLUMNS = pa.schema([("id", pa.int64()), ("hour", pa.string())])


@pytest.fixture(params=["local", "s3"])
def location(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    """Where a table may lie, in each kind of store."""
    if request.param == "local":
        return str(tmp_path / "lake")
    server: ObjectServer = request.getfixturevalue("on_s3")
    return f"{server.bucket()}/lake ü +=&"


@pytest.fixture(params=["delta", "parquet"])
def form(request: pytest.FixtureRequest) -> str:
    """Format of a table."""
    return str(request.param)


@pytest.fixture
def table(location: str, form: str) -> PipelineTable:
    return made(location, form)


@pytest.fixture
def stage(location: str, form: str) -> Callable[[int], StagedFile]:
    return lambda rows: written(location, "2026-11-20T05", rows, form)


@pytest.fixture
def delta(location: str) -> PipelineTable:
    """A table that other clients write to as well."""
    return made(location, "delta")


@pytest.fixture
def add(location: str) -> Callable[[int], StagedFile]:
    """Stage a file for that one."""
    return lambda rows: written(location, "2026-11-20T05", rows, "delta")


def made(location: str, form: str) -> PipelineTable:
    table = OPENED[form](location, "events", patience=timedelta(seconds=3))
    table.create(COLUMNS, ["hour"])
    return table


def written(location: str, hour: str, rows: int, form: str) -> StagedFile:
    """Write a file as a task does."""
    now = datetime(2026, 11, 20, 5, tzinfo=UTC)
    to = Destination(store_at(location), ("hour",), "test", 2**20, hidden=form == "parquet")
    path, sink = to.open((hour,))
    with pq.ParquetWriter(sink, pa.schema([("id", pa.int64())])) as out:
        out.write_table(pa.table({"id": list(range(rows))}))
    metadata, size = out.writer.metadata, sink.tell()
    sink.close()
    return StagedFile(path, (hour,), rows, size, delta_statistics(metadata), now, now, {("clicks", 0): rows})


def opened(location: str) -> DeltaTable:
    """Open a table as another client does."""
    return DeltaTable(location, storage_options=delta_options(location))


def begun(table: PipelineTable, **starts: int) -> int:
    parts = {P0: starts.get("p0", 0), P1: starts.get("p1", 0)}
    return table.begin(parts, {"clicks": ["uuid-1"]})


def batch(epoch: int, start: int, end: int, *files: StagedFile, part: Part = P0) -> Batch:
    return Batch(uuid4().hex, epoch, [Range(part, start, end)], files, facts={"ranges": [], "rows": end - start})


def rows(table: PipelineTable) -> int:
    """Count what a reader sees."""
    parquet = isinstance(table._format, Parquet)
    return int(hive.seen(table.location).num_rows if parquet else opened(table.location).count())


def test_a_start_sets_the_frontier_and_raises_the_epoch(table: PipelineTable) -> None:
    assert table.snapshot().frontier(P0) is None
    assert begun(table, p0=17) == 1
    snapshot = table.snapshot()
    assert (snapshot.frontier(P0), snapshot.frontier(P1), snapshot.epoch) == (17, 0, 1)
    assert snapshot.incarnations() == {"clicks": ["uuid-1"]}
    assert table.begin({}, {"clicks": ["uuid-1"]}) == 2
    assert table.snapshot().frontier(P0) == 17


def test_a_start_does_not_move_a_frontier_that_was_set_meanwhile(
    table: PipelineTable, stage: Callable[[int], StagedFile]
) -> None:
    """Two starts see a new part; the first commits before the second begins."""
    epoch = begun(table)
    table.commit(table.snapshot(), batch(epoch, 0, 100, stage(100)))
    assert begun(table) == epoch + 1
    assert table.snapshot().frontier(P0) == 100


def test_a_restore_before_an_unanswered_commit_is_still_found_by_the_next_start(
    delta: PipelineTable, add: Callable[[int], StagedFile]
) -> None:
    epoch = begun(delta)
    looked = delta.commit(delta.snapshot(), batch(epoch, 0, 10, add(10)))
    opened(delta.location).restore(looked - 1)
    last = Batch(uuid4().hex, epoch, [Range(P0, 10, 20)], [add(10)], facts={"ranges": []}, settled=looked)
    delta.commit(delta.snapshot(), last)
    with pytest.raises(ForeignChange):
        delta.commits_since(delta.snapshot().settled)


def test_a_commit_moves_files_and_frontier_together(table: PipelineTable, stage: Callable[[int], StagedFile]) -> None:
    epoch = begun(table)
    version = table.commit(table.snapshot(), batch(epoch, 0, 10, stage(10)))
    snapshot = table.snapshot()
    assert (snapshot.version, snapshot.frontier(P0), rows(table)) == (version, 10, 10)
    (found,) = table.commits_since(version - 1)
    assert found.version == version


def test_a_commit_that_does_not_start_at_the_frontier_is_fenced(
    table: PipelineTable, stage: Callable[[int], StagedFile]
) -> None:
    epoch = begun(table)
    table.commit(table.snapshot(), batch(epoch, 0, 10, stage(10)))
    with pytest.raises(Fenced, match="offset 10 of clicks/0 is committed, this batch starts at 4"):
        table.commit(table.snapshot(), batch(epoch, 4, 14, stage(10)))
    assert rows(table) == 10


def test_a_later_start_fences_the_earlier_one(table: PipelineTable, stage: Callable[[int], StagedFile]) -> None:
    old = begun(table)
    stale = table.snapshot()
    table.begin({}, {"clicks": ["uuid-1"]})
    for snapshot in (stale, table.snapshot()):
        with pytest.raises(Fenced, match="started again"):
            table.commit(snapshot, batch(old, 0, 10, stage(10)))
    assert rows(table) == 0


def test_a_straggler_of_an_older_lease_is_fenced(table: PipelineTable, stage: Callable[[int], StagedFile]) -> None:
    """A driver that an older supervisor ordered, and that begins after the newer one's."""
    ids = {"clicks": ["uuid-1"]}
    table.begin({P0: 0, P1: 0}, ids, lease=6)
    heir = table.begin({}, ids, lease=7)
    with pytest.raises(Fenced, match="lease 7 of its supervisors, this start was ordered under lease 6"):
        table.begin({}, ids, lease=6)
    table.commit(table.snapshot(), batch(heir, 0, 10, stage(10)))
    assert (rows(table), table.snapshot().lease) == (10, 7)
    by_hand = table.begin({}, ids)
    assert (by_hand, table.snapshot().lease) == (heir + 1, 7), (
        "who starts it by hand takes it over, and keeps the lease"
    )
    assert table.begin({}, ids, lease=7) == by_hand + 1


def gap(epoch: int, *ranges: Range) -> Gap:
    return Gap(uuid4().hex, epoch, ranges, "retention", {"run": 1, "at": "2026-11-20T05:00:00+00:00"})


def test_a_gap_moves_the_frontier_without_files_and_keeps_its_ticket(
    table: PipelineTable, stage: Callable[[int], StagedFile]
) -> None:
    epoch = begun(table)
    table.commit(table.snapshot(), batch(epoch, 0, 10, stage(10)))
    lost = gap(epoch, Range(P0, 10, 25), Range(P1, 0, 3))
    version = table.record_gap(table.snapshot(), lost)
    snapshot = table.snapshot()
    assert (snapshot.version, snapshot.frontier(P0), snapshot.frontier(P1), rows(table)) == (version, 25, 3, 10)
    assert (snapshot.epoch, snapshot.gaps) == (epoch, (1, 18))
    entry = table.history(1)[0]
    assert (entry.kind, entry.version) == ("gap", version)
    assert entry.facts == {
        "kind": "gap", "id": lost.id, "cause": "retention", "run": 1, "at": "2026-11-20T05:00:00+00:00",
        "ranges": [
            {"topic": "clicks", "incarnation": 1, "partition": 0, "start": 10, "end": 25},
            {"topic": "clicks", "incarnation": 1, "partition": 1, "start": 0, "end": 3},
        ],
    }  # fmt: skip
    table.commit(table.snapshot(), batch(epoch, 25, 30, stage(5)))
    table.record_gap(table.snapshot(), gap(epoch, Range(P1, 3, 4)))
    assert table.snapshot().gaps == (2, 19)
    assert len(table.commits_since(-1)) == 4


def test_a_gap_that_does_not_begin_at_the_frontier_is_fenced(table: PipelineTable) -> None:
    epoch = begun(table, p0=10)
    for start in (4, 11):
        with pytest.raises(Fenced, match=f"offset 10 of clicks/0 is committed, this batch starts at {start}"):
            table.record_gap(table.snapshot(), gap(epoch, Range(P0, start, 25)))
    assert (table.snapshot().frontier(P0), table.snapshot().gaps) == (10, (0, 0))


def test_a_later_start_fences_a_gap(table: PipelineTable) -> None:
    old = begun(table)
    stale = table.snapshot()
    table.begin({}, {"clicks": ["uuid-1"]})
    for snapshot in (stale, table.snapshot()):
        with pytest.raises(Fenced, match="started again"):
            table.record_gap(snapshot, gap(old, Range(P0, 0, 10)))
    assert table.snapshot().frontier(P0) == 0


def test_a_gap_whose_answer_was_lost_is_found_in_the_log(table: PipelineTable, monkeypatch: pytest.MonkeyPatch) -> None:
    epoch = begun(table)
    write = table._end.write

    def silent(*args: object) -> None:
        write(*args)  # type: ignore[arg-type]
        raise OSError("the line went dead")

    monkeypatch.setattr(table._end, "write", silent)
    version = table.record_gap(table.snapshot(), gap(epoch, Range(P0, 0, 10)))
    assert (table.snapshot().version, table.snapshot().frontier(P0)) == (version, 10)
    assert table.snapshot().gaps == (1, 10)


def test_a_run_that_was_closed_stays_closed(table: PipelineTable) -> None:
    for closed, expected in ((4, 4), (0, 4), (2, 4), (5, 5)):
        table.begin({}, {"clicks": ["uuid-1"]}, closed)
        assert table.snapshot().closed == expected


def test_a_start_with_new_incarnations_is_one_entry(table: PipelineTable) -> None:
    """A process that dies can leave no frontier of an incarnation that the table does not name."""
    begun(table)
    before = table.snapshot().version
    table.begin({Part("clicks", 2, 0): 0}, {"clicks": ["uuid-1", "uuid-2"]})
    snapshot = table.snapshot()
    assert snapshot.version == before + 1
    assert (snapshot.incarnations(), snapshot.frontier(Part("clicks", 2, 0))) == ({"clicks": ["uuid-1", "uuid-2"]}, 0)


@pytest.mark.parametrize("checkpointed", [False, True])
def test_an_adoption_renames_incarnations_and_fences_who_ran(
    table: PipelineTable, form: str, stage: Callable[[int], StagedFile], checkpointed: bool
) -> None:
    epoch = begun(table)
    table.commit(table.snapshot(), batch(epoch, 0, 10, stage(10)))
    if checkpointed:
        OPENED[form](table.location, "events", checkpoint_interval=1).tidy()
        table = OPENED[form](table.location, "events")
    other = Part("source.clicks", 1, 0)
    before = table.snapshot()
    ids = {"clicks": ["uuid-9"], "source.clicks": ["uuid-8"]}
    version = table.adopt(before, Adoption(ids, {other: 10}, 3, {"at": "2026-11-20T05:00:00+00:00"}))
    snapshot = table.snapshot()
    assert (snapshot.version, snapshot.epoch, snapshot.incarnations()) == (version, epoch + 1, ids)
    assert (before.closed, snapshot.closed) == (0, 3)
    assert (snapshot.frontier(P0), snapshot.frontier(other), rows(table)) == (10, 10, 10)
    assert table.history(1)[0].facts == {"kind": "adopt", "at": "2026-11-20T05:00:00+00:00"}
    with pytest.raises(Fenced):
        table.commit(before, batch(epoch, 10, 20, stage(10)))
    if form == "delta":
        again = opened(table.location)
        assert again.metadata().name == "headrace/events"
        assert again.metadata().partition_columns == ["hour"]
        assert (again.protocol().min_reader_version, again.protocol().min_writer_version) == (1, 2)


def test_rows_are_what_any_reader_finds(table: PipelineTable, stage: Callable[[int], StagedFile]) -> None:
    epoch = begun(table)
    table.commit(table.snapshot(), batch(epoch, 0, 3, stage(3)))
    table.grow([pa.field("price", pa.float64())], epoch)
    found = table.rows().to_table()
    assert found.schema.names == ["id", "hour", "price"]
    assert found.to_pylist() == [{"id": n, "hour": "2026-11-20T05", "price": None} for n in range(3)]


def test_an_adoption_is_of_what_was_looked_at_or_not_at_all(
    table: PipelineTable, stage: Callable[[int], StagedFile]
) -> None:
    epoch = begun(table)
    looked = table.snapshot()
    table.commit(looked, batch(epoch, 0, 10, stage(10)))
    with pytest.raises(CommitFailed, match="nothing was adopted"):
        table.adopt(looked, Adoption({"clicks": ["uuid-9"]}, {}))
    assert table.snapshot().incarnations() == {"clicks": ["uuid-1"]}


def test_of_two_commits_on_one_snapshot_the_second_is_fenced(
    table: PipelineTable, stage: Callable[[int], StagedFile]
) -> None:
    epoch = begun(table)
    one, other = table.snapshot(), table.snapshot()
    table.commit(one, batch(epoch, 0, 10, stage(10)))
    with pytest.raises(Fenced):
        table.commit(other, batch(epoch, 0, 12, stage(12)))
    assert rows(table) == 10


def test_an_answer_lost_in_flight_is_found_in_the_log(
    table: PipelineTable, stage: Callable[[int], StagedFile], monkeypatch: pytest.MonkeyPatch
) -> None:
    epoch = begun(table)
    write = table._end.write

    def lost(*args: object) -> None:
        write(*args)  # type: ignore[arg-type]
        raise OSError("connection reset")

    monkeypatch.setattr(table._end, "write", lost)
    version = table.commit(table.snapshot(), batch(epoch, 0, 10, stage(10)))
    assert (table.snapshot().version, rows(table)) == (version, 10)


def test_a_storage_that_fails_twice_and_recovers_holds_one_commit(
    table: PipelineTable, stage: Callable[[int], StagedFile], monkeypatch: pytest.MonkeyPatch
) -> None:
    epoch = begun(table)
    write, failures = table._end.write, iter(["503", "503"])

    def flaky(*args: object) -> None:
        if next(failures, None):
            raise OSError("503 slow down")
        write(*args)  # type: ignore[arg-type]

    monkeypatch.setattr(table._end, "write", flaky)
    table.commit(table.snapshot(), batch(epoch, 0, 10, stage(10)))
    assert rows(table) == 10


def test_a_storage_that_keeps_failing_is_a_clear_failure(
    table: PipelineTable, stage: Callable[[int], StagedFile], monkeypatch: pytest.MonkeyPatch
) -> None:
    epoch = begun(table)

    def down(*_: object) -> None:
        raise OSError("503 slow down")

    monkeypatch.setattr(table._end, "write", down)
    with pytest.raises(CommitFailed, match=r"503 slow down\. The next start looks"):
        table.commit(table.snapshot(), batch(epoch, 0, 10, stage(10)))
    assert rows(table) == 0


def test_columns_added_between_snapshot_and_commit_do_not_stop_it(
    delta: PipelineTable, add: Callable[[int], StagedFile]
) -> None:
    epoch = begun(delta)
    snapshot = delta.snapshot()
    opened(delta.location).alter.add_columns([Field("theirs", "string")])
    delta.commit(snapshot, batch(epoch, 0, 10, add(10)))
    assert rows(delta) == 10
    assert "theirs" in delta.snapshot().columns().names


def test_a_restore_by_another_client_is_told(delta: PipelineTable, add: Callable[[int], StagedFile]) -> None:
    epoch = begun(delta)
    first = delta.commit(delta.snapshot(), batch(epoch, 0, 10, add(10)))
    delta.commit(delta.snapshot(), batch(epoch, 10, 20, add(10)))
    opened(delta.location).restore(first)
    with pytest.raises(ForeignChange, match="another client ran RESTORE"):
        delta.commits_since(first)


def test_columns_are_added_once(table: PipelineTable) -> None:
    epoch = begun(table)
    new = [pa.field("price", pa.float64()), pa.field("ID", pa.int64())]
    table.grow(new, epoch)
    version = table.snapshot().version
    table.grow(new, epoch)
    assert table.snapshot().version == version
    assert table.snapshot().columns().names == ["id", "hour", "price"]


def test_a_table_belongs_to_one_pipeline_and_one_bucketing(table: PipelineTable, form: str) -> None:
    again = OPENED[form]
    with pytest.raises(ConfigError, match="belongs to pipeline 'events'"):
        again(table.location, "other").create(COLUMNS, ["hour"])
    with pytest.raises(ConfigError, match="is bucketed by hour, the configuration says day"):
        again(table.location, "events").create(COLUMNS, ["day"])
    with pytest.raises(ConfigError, match="the configuration says 1 h in Berlin"):
        again(table.location, "events").create(COLUMNS, ["hour"], "1 h in Berlin")


def test_a_table_of_one_format_is_not_opened_as_another(table: PipelineTable, form: str) -> None:
    other, name = {"delta": ("parquet", "a Delta table"), "parquet": ("delta", "a table in Parquet format")}[form]
    with pytest.raises(ConfigError, match=f"holds {name}. Choose a new location, or correct table.format"):
        OPENED[other](table.location, "events").create(COLUMNS, ["hour"])


def test_a_table_is_opened_by_the_next_start_as_it_was_made(table: PipelineTable, form: str) -> None:
    again = OPENED[form](table.location, "events")
    assert again.exists()
    again.create(COLUMNS, ["hour"])
    assert again.snapshot().version == table.snapshot().version == 0
    assert again.snapshot().columns().equals(COLUMNS)


def test_history_and_buckets_say_what_was_committed(
    table: PipelineTable, location: str, form: str, stage: Callable[[int], StagedFile]
) -> None:
    epoch = begun(table)
    files = [stage(3), written(location, "2026-11-20T06", 4, form)]
    version = table.commit(table.snapshot(), batch(epoch, 0, 7, *files))
    assert sorted(table.buckets()) == [("2026-11-20T05",), ("2026-11-20T06",)]
    assert [(entry.version, entry.kind) for entry in table.history()] == [(version, "batch"), (version - 1, "start")]
    assert [facts["rows"] for facts in table.recent(5)] == [7]


def test_side_files_are_applied_once(location: str, form: str, stage: Callable[[int], StagedFile]) -> None:
    file = stage(5)
    bare = StagedFile(file.path, (), 5, file.bytes, file.statistics, file.event_time_min, file.event_time_max, {})
    letters = OPENED[form](location, "events")
    columns = pa.schema([("id", pa.int64())])
    letters.create(columns, [])
    assert letters.snapshot().applied == -1
    for _ in range(2):
        letters.apply_side(7, [bare])
    assert (letters.snapshot().applied, rows(letters)) == (7, 5)


def test_the_log_is_checkpointed_at_the_set_interval(
    location: str, form: str, stage: Callable[[int], StagedFile]
) -> None:
    table = OPENED[form](location, "events", checkpoint_interval=5)
    table.create(COLUMNS, ["hour"])
    epoch = begun(table)
    for n in range(8):
        table.commit(table.snapshot(), batch(epoch, n * 10, n * 10 + 10, stage(10)))
        table.tidy()
    assert [name for name in store_at(table.log_location).list() if ".checkpoint." in name]
    assert (rows(table), table.snapshot().frontier(P0), table.snapshot().epoch) == (80, 80, 1)
    fresh = OPENED[form](location, "events").snapshot()
    assert (fresh.frontier(P0), fresh.epoch, fresh.version) == (80, 1, table.snapshot().version)


def test_the_protocol_stays_where_every_engine_reads(delta: PipelineTable) -> None:
    protocol = opened(delta.location).protocol()
    assert (protocol.min_reader_version, protocol.min_writer_version) == (1, 2)
