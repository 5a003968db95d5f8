"""An Iceberg table of another client becomes a pipeline's, with its rows; what cannot be is refused with reasons."""

import json
import re
from collections.abc import Callable
from contextlib import suppress
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
from pyiceberg.expressions import EqualTo
from pyiceberg.partitioning import UNPARTITIONED_PARTITION_SPEC, PartitionField, PartitionSpec
from pyiceberg.table import Table
from pyiceberg.transforms import HourTransform, IdentityTransform
from pyiceberg.types import IntegerType, LongType, NestedField, StringType, TimeType

from headrace.writer.audit.audit import audit
from headrace.writer.cli.maintain.table_adopt import run_adopt
from headrace.writer.core.errors import ConfigError
from headrace.writer.core.offsets import TopicPartition
from headrace.writer.maintenance.compaction.compactor import here
from headrace.writer.table.iceberg import adoption
from headrace.writer.table.log.foreign_writes import CommitFailed, ForeignChange
from tests.support.effect_failures import Died, die_after
from tests.support.foreign_iceberg import (
    START,
    adopt,
    create_foreign_table,
    delete_rows_by_file,
    foreign_client,
)
from tests.support.foreign_rows import old_rows
from tests.support.local_driver import Driver, log, pipeline_config
from tests.support.sample_records import NOW, event
from tests.support.small_files import compactor

HOURS = {f"{NOW - n * timedelta(hours=1):%Y-%m-%dT%H}" for n in range(3)}
NONE = old_rows().slice(0, 0)
BY_TIME = PartitionSpec(PartitionField(2, 1000, HourTransform(), "at_hour"))


def test_the_old_rows_stay_the_new_ones_come_and_the_audit_adds_up(tmp_path: Path) -> None:
    create_foreign_table(tmp_path)
    with pytest.raises(ForeignChange, match=r"`headrace table adopt` says whether it can be adopted"):
        Driver(tmp_path, "iceberg", start=START)
    adopt(tmp_path)
    driver = Driver(tmp_path, "iceberg", start=START)
    driver.start(offset=100)
    driver.carry(
        [log({offset: event(offset, event_time=NOW) for offset in range(100, 130)} | {130: b"broken"})], {0: 131}
    )
    report = audit(driver.config, "clicks", since=None, deep=True)
    assert report.adds_up, report.problems
    (line,) = report.reconciliation.lines
    assert (report.reconciliation.adopted, *line.range.span, line.outcomes["rows"]) == (6, 100, 131, 30)
    seen(tmp_path)
    compaction, snapshot = compactor(driver), driver.table.snapshot()
    hour = (f"{NOW:%Y-%m-%dT%H}",)
    planned = compaction.plan(snapshot, [hour], open_too=True)
    (done,) = (result for pieces in planned.values() for result in compaction.carry_out(snapshot, pieces, here))
    assert (done.rows, done.version) == (32, snapshot.version + 1)
    (file,) = driver.table.bucket_files(driver.table.snapshot(), hour)
    assert (driver.table.snapshot().version, file.rows) == (snapshot.version + 1, 32)
    seen(tmp_path)
    assert audit(driver.config, "clicks", since=None, deep=True).adds_up


def seen(root: Path) -> None:
    """Assert that a reader finds the old rows, of files with field ids, beside ours, of files without."""
    table = foreign_client(root).scan().to_arrow().sort_by([("id", "ascending")])
    assert table.num_rows == 36
    assert table.column("id").to_pylist() == [*range(100, 130), *range(1000, 1006)]
    assert table.column("legacy").to_pylist() == [None] * 30 + [1] * 6
    assert table.column("note").to_pylist()[-6:] == ["old"] * 6
    assert table.column("_offset").to_pylist() == [*range(100, 130)] + [None] * 6
    assert table.column("_kafka_partition").null_count == 6
    assert set(table.column("hour").to_pylist()) == HOURS


def test_an_adoption_is_shown_first_and_written_with_yes(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    create_foreign_table(tmp_path)
    adopt(tmp_path, write=False)
    document = json.loads(capsys.readouterr().out)
    assert (document["version"], document["rows"], document["files"], document["buckets"]) == (None, 6, 5, 3)
    assert document["columns_added"] == ["_topic", "_incarnation", "_partition", "_offset", "_kafka_time"]
    assert document["rows_compared"] > 0
    before = foreign_client(tmp_path)
    adopt(tmp_path)
    assert json.loads(capsys.readouterr().out)["version"] == 0
    after = foreign_client(tmp_path)
    assert after.metadata.current_snapshot_id == before.metadata.current_snapshot_id, "no snapshot was added"
    assert (after.properties["write.delete.mode"], after.properties["headrace.version"]) == ("copy-on-write", "0")
    with pytest.raises(ConfigError, match="It belongs to pipeline 'clicks' already"):
        adopt(tmp_path)


def test_rows_of_other_clients_after_an_adoption_are_seen_and_deletes_stay(tmp_path: Path) -> None:
    create_foreign_table(tmp_path)
    adopt(tmp_path)
    driver = Driver(tmp_path, "iceberg", start=START)
    driver.start(offset=100)
    foreign_client(tmp_path).delete(EqualTo("id", 1003))
    driver.carry([log({offset: event(offset) for offset in range(100, 104)})], {0: 104})
    assert foreign_client(tmp_path).scan().count() == 9
    foreign_client(tmp_path).append(old_rows().slice(0, 1))
    with pytest.raises(ForeignChange, match="another client ran INSERT"):
        driver.carry([log({offset: event(offset) for offset in range(104, 106)})], {0: 106})


def test_a_table_without_rows_is_adopted(tmp_path: Path) -> None:
    create_foreign_table(tmp_path, rows=NONE)
    adopt(tmp_path)
    driver = Driver(tmp_path, "iceberg", start=START)
    driver.start(offset=100)
    driver.carry([log({offset: event(offset) for offset in range(100, 104)})], {0: 104})
    assert foreign_client(tmp_path).scan().count() == 4


def test_a_table_that_is_written_meanwhile_is_not_adopted(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    create_foreign_table(tmp_path)
    honest = adoption.takeover_actions

    def meanwhile(*given: Any) -> Any:
        foreign_client(tmp_path).append(old_rows().slice(0, 1))
        return honest(*given)

    monkeypatch.setattr(adoption, "takeover_actions", meanwhile)
    with pytest.raises(CommitFailed, match="was written to meanwhile"):
        adopt(tmp_path)
    assert "headrace.version" not in foreign_client(tmp_path).properties
    monkeypatch.undo()
    adopt(tmp_path)


def test_after_a_death_at_any_effect_it_is_run_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    ended, after = False, 0
    while not ended:
        root = tmp_path / str(after)
        create_foreign_table(root)
        at_effect = die_after(monkeypatch, after)
        next(at_effect)
        with suppress(Died):
            adopt(root)
            ended = True
        next(at_effect)
        with suppress(ConfigError):  # it is done
            adopt(root)
        driver = Driver(root, "iceberg", start=START)
        driver.start(offset=100)
        driver.carry([log({offset: event(offset) for offset in range(100, 104)})], {0: 104})
        assert (
            foreign_client(root).scan().count(),
            driver.table.snapshot().frontier(TopicPartition("clicks", 1, 0)),
        ) == (
            10,
            104,
        )
        assert audit(driver.config, "clicks", since=None, deep=True).adds_up
        after += 1
    assert after > 3


def renamed(table: Table) -> None:
    with table.update_schema() as change:
        change.rename_column("note", "remark")


def dropped(table: Table) -> None:
    with table.update_schema(allow_incompatible_changes=True) as change:
        change.delete_column("note")
    with table.update_schema() as change:
        change.add_column("note", StringType())


def third_version(table: Table) -> None:
    path = Path(table.metadata_location.removeprefix("file://"))
    path.write_text(json.dumps({**json.loads(path.read_text()), "format-version": 3, "next-row-id": 0}))


def partitioned_later(table: Table) -> None:
    with table.update_spec() as change:
        change.add_identity("hour")


@pytest.mark.parametrize(
    ("made", "changed", "reason"),
    [
        ({"format-version": "1"}, None, r"format version is 1; headrace writes 2\. Set format-version to 2"),
        ({}, third_version, r"format version is 3; headrace writes 2\. Copy its rows"),
        ({"spec": UNPARTITIONED_PARTITION_SPEC}, None, "partitioned by nothing, the pipeline buckets by hour"),
        ({"spec": BY_TIME, "rows": NONE}, None, "partitioned by hour of at, the pipeline buckets by hour"),
        ({"spec": PartitionSpec(PartitionField(5, 1000, IdentityTransform(), "h"))}, None, "field h is not a column"),
        ({"more": NestedField(6, "_kafka_partition", IntegerType(), required=False)}, None, "_kafka_partition has"),
        ({"more": NestedField(6, "_offset", StringType(), required=False)}, None, "_offset is string by now"),
        ({"more": NestedField(6, "clock", TimeType(), required=False)}, None, "column clock is time, which"),
        ({"spec": UNPARTITIONED_PARTITION_SPEC}, partitioned_later, "is partitioned in an older way"),
        ({}, delete_rows_by_file, "Row deletes lie on its files"),
        ({}, renamed, "column remark was note before"),
        ({}, dropped, "column note was another one of that name before"),
    ],
    ids=["format 1", "format 3", "no partitions", "a transform", "another name", "our column", "another type", "time",
         "older partitions", "row deletes", "renamed", "dropped"],
)  # fmt: skip
def test_a_table_that_does_not_fit_is_not_adopted_and_the_refusal_gives_the_reason(
    tmp_path: Path, made: dict[str, Any], changed: Callable[[Table], None] | None, reason: str
) -> None:
    more = [made.pop("more")] if "more" in made else []
    table = create_foreign_table(tmp_path, *more, **made)
    if changed:
        changed(table)
    with pytest.raises(ConfigError, match="cannot be adopted") as refused:
        adopt(tmp_path)
    assert re.search(reason, str(refused.value)), str(refused.value)
    assert "headrace.version" not in foreign_client(tmp_path).properties


def test_without_a_start_the_offsets_that_its_columns_name_are_proposed(tmp_path: Path) -> None:
    more = [NestedField(6, "kafka_topic", StringType(), required=False),
            NestedField(7, "kafka_partition", LongType(), required=False),
            NestedField(8, "kafka_offset", LongType(), required=False)]  # fmt: skip
    rows = old_rows(kafka_topic=["clicks"] * 6, kafka_partition=[0] * 6, kafka_offset=list(range(6)))
    create_foreign_table(tmp_path, *more, rows=rows)
    config = pipeline_config(tmp_path, "iceberg")
    with pytest.raises(ConfigError, match=r"end at \{offsets: \{clicks: \{0: 6\}\}\}"):
        run_adopt(config, "clicks", write=True, now=NOW)
