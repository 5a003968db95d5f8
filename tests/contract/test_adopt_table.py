"""A Delta table of another writer becomes a pipeline's, with its rows; what cannot be is refused with reasons."""

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
import yaml
from deltalake import DeltaTable, write_deltalake
from typer.testing import CliRunner

from headrace import bucketers
from headrace.writer.audit.audit import audit
from headrace.writer.cli.main import app
from headrace.writer.cli.maintain import table_adopt
from headrace.writer.config.pipelines import Config
from headrace.writer.core.errors import ConfigError
from headrace.writer.maintenance.migration.table_adoption import TableAdoption
from headrace.writer.maintenance.retention import Retention
from headrace.writer.output.report import Screen
from headrace.writer.table.factory import main_table
from headrace.writer.table.log.foreign_writes import CommitFailed
from headrace.writer.table.log.operations.rows import Rewrite
from headrace.writer.table.takeover import obstacles
from tests.support.foreign_rows import HOUR, old_rows
from tests.support.local_driver import Driver, log
from tests.support.sample_records import NOW, config, event

START = {"offsets": {"clicks": {0: 100}}}


def foreign(root: Path, rows: pa.Table | None = None, **settings: Any) -> str:
    lake = str(root / "lake" / "clicks")
    for piece in ((rows or old_rows()).slice(0, 4), (rows or old_rows()).slice(4)):
        write_deltalake(lake, piece, partition_by=["hour"], mode="append", **settings)
    return lake


def adopted(settings: Config, *, write: bool = True) -> None:
    Screen(as_json=True, has_lines=False).show(table_adopt.run_adopt(settings, "clicks", write=write, now=NOW))


@pytest.mark.parametrize("deep", [False, True])
def test_the_old_rows_stay_the_new_ones_come_and_the_audit_adds_up(tmp_path: Path, deep: bool) -> None:
    lake = foreign(tmp_path)
    adopted(config(tmp_path, start=START))
    driver = Driver(tmp_path, start=START)
    driver.start(offset=100)
    driver.carry([log({offset: event(offset) for offset in range(100, 130)} | {130: b"broken"})], {0: 131})
    driver.carry([log({131: event(131)})], {0: 132})
    report = audit(driver.config, "clicks", since=None, deep=deep)
    assert report.adds_up, report.problems
    (line,) = report.reconciliation.lines
    assert (report.reconciliation.adopted, *line.range.span, line.outcomes["rows"]) == (6, 100, 132, 31)
    table = DeltaTable(lake).to_pyarrow_table()
    assert (table.num_rows, table.column("_offset").null_count) == (37, 6)
    assert table.filter(pa.compute.is_null(table.column("_offset"))).column("note").to_pylist() == ["old"] * 6


def test_an_accept_is_of_what_came_after_the_former_writer(tmp_path: Path) -> None:
    lake = foreign(tmp_path)
    adopted(config(tmp_path, start=START))
    driver = Driver(tmp_path, start=START)
    driver.start(offset=100)
    driver.carry([log({offset: event(offset) for offset in range(100, 130)})], {0: 130})
    assert not table_adopt.run_accept(driver.config, "clicks", write=True, now=NOW).has_changes
    table = DeltaTable(lake)
    table.update({"note": "'other'"}, predicate="_offset = 110")
    assert table_adopt.run_accept(driver.config, "clicks", write=True, now=NOW).has_changes
    driver.start()
    driver.carry([log({130: event(130)})], {0: 131})
    assert DeltaTable(lake).to_pyarrow_table().num_rows == 37


def test_an_adoption_is_shown_first_and_written_with_yes(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    lake = foreign(tmp_path)
    settings = config(tmp_path, start=START)
    adopted(settings, write=False)
    document = json.loads(capsys.readouterr().out)
    assert (document["version"], document["rows"], document["files"], document["buckets"]) == (None, 6, 5, 3)
    assert document["columns_added"] == ["_topic", "_incarnation", "_partition", "_offset", "_kafka_time"]
    assert document["rows_compared"] > 0
    assert DeltaTable(lake).version() == 1
    adopted(settings)
    assert json.loads(capsys.readouterr().out)["version"] == 2
    with pytest.raises(ConfigError, match="It belongs to pipeline 'clicks' already"):
        adopted(settings)


def test_a_start_before_the_adoption_is_refused_and_names_the_verb(tmp_path: Path) -> None:
    foreign(tmp_path)
    with pytest.raises(ConfigError, match=r"was not made by headrace.*`headrace table adopt`"):
        Driver(tmp_path)


def test_a_ledger_page_and_a_cleaned_log_still_know_the_adopted_rows(tmp_path: Path) -> None:
    foreign(tmp_path)
    adopted(config(tmp_path, start=START))
    driver = Driver(tmp_path, start=START, interval=2)
    driver.start(offset=100)
    for offset in range(100, 108):
        driver.carry([log({offset: event(offset)})], {0: offset + 1})
    logs = sorted(Path(driver.lake, "_delta_log").glob("*[0-9].json"))
    checkpointed = json.loads(Path(driver.lake, "_delta_log", "_last_checkpoint").read_text())["version"]
    assert checkpointed > 2
    for path in logs:
        if int(path.stem) < checkpointed:
            path.unlink()
    report = audit(Driver(tmp_path, start=START).config, "clicks", since=None, deep=True)
    assert report.adds_up, report.problems
    assert report.reconciliation.adopted == 6


def test_adopted_rows_go_by_retention_and_mix_with_ours_in_a_rewrite(tmp_path: Path) -> None:
    foreign(tmp_path)
    adopted(config(tmp_path, start=START))
    driver = Driver(tmp_path, start=START)
    driver.start(offset=100)
    driver.carry([log({offset: event(0, event_time=NOW) for offset in range(100, 104)})], {0: 104})
    table, snapshot = driver.table, driver.table.snapshot()
    mine = table.bucket_files(snapshot, ("2026-11-20T12",))
    rows = table.rows().to_table(filter=pa.compute.field("hour") == "2026-11-20T12")
    table.append(Rewrite("merge", mine, [_file(driver, rows)]), snapshot)
    assert audit(driver.config, "clicks", since=None, deep=True).adds_up
    hours = bucketers.build(driver.settings.bucket)
    (gone,) = Retention(table, hours, 2 * HOUR).run(NOW + HOUR)
    assert gone.rows == 2
    report = audit(driver.config, "clicks", since=None, deep=True)
    assert report.adds_up, report.problems


def _file(driver: Driver, rows: pa.Table):
    from headrace.writer.batch.staging.parquet_files import BucketFiles, Destination

    files = BucketFiles(Destination(driver.table.store, ("hour",), "x", 2**20), ("2026-11-20T12",))
    files.add(rows.drop_columns(["hour"]))
    (file,) = files.close(NOW, NOW)
    return file


def test_rows_without_offsets_that_were_not_adopted_are_a_problem(tmp_path: Path) -> None:
    foreign(tmp_path)
    adopted(config(tmp_path, start=START))
    entry = Path(tmp_path, "lake", "clicks", "_delta_log", f"{2:020}.json")
    entry.write_text(entry.read_text().replace('\\"rows\\": 6', '\\"rows\\": 5'))
    report = audit(config(tmp_path, start=START), "clicks", since=None, deep=True)
    assert "the files hold 6 rows, the account has 5" in " ".join(p.description for p in report.problems)
    assert "1 rows say no offset, beyond those that were adopted" in " ".join(p.description for p in report.problems)


def test_a_table_that_is_written_meanwhile_is_not_adopted(tmp_path: Path) -> None:
    lake = foreign(tmp_path)
    adoption = TableAdoption(config(tmp_path, start=START), "clicks")
    plan = adoption.plan()
    write_deltalake(lake, old_rows().slice(0, 1), mode="append")
    with pytest.raises(CommitFailed, match="was written to meanwhile"):
        adoption.carry_out(plan, {"at": NOW.isoformat()})
    assert DeltaTable(lake).version() == 2


def refusal(root: Path, **settings: Any) -> str:
    before = DeltaTable(str(root / "lake" / "clicks")).version()
    with pytest.raises(ConfigError, match="cannot be adopted") as caught:
        adopted(config(root, **{"start": START, **settings}))
    assert DeltaTable(str(root / "lake" / "clicks")).version() == before
    return str(caught.value)


def test_offsets_that_its_columns_hold_are_offered_and_never_taken(tmp_path: Path) -> None:
    more = {
        "kafka_topic": ["clicks"] * 6, "kafka_partition": pa.array([0, 0, 0, 1, 1, 1], pa.int32()),
        "kafka_offset": pa.array([5, 6, 7, 0, 1, 2], pa.int64()),
    }  # fmt: skip
    foreign(tmp_path, old_rows(**more))
    with pytest.raises(ConfigError, match="say where to read on") as caught:
        adopted(config(tmp_path))
    assert "they end at {offsets: {clicks: {0: 8, 1: 3}}}" in str(caught.value)


def test_buckets_of_another_zone_or_width_are_noticed_by_the_rows(tmp_path: Path) -> None:
    foreign(tmp_path)
    bucket = {"type": "event_time", "width": "1 h", "zone": "Europe/Berlin"}
    text = refusal(tmp_path, bucket=bucket)
    assert "Rows of its partition hour=2026-11-20T10 belong to hour=2026-11-20T11 as configured" in text
    assert (
        "belong to hour=2026-11-20T10"
        in refusal(tmp_path, bucket={"type": "event_time", "width": "2 h", "column": "hour"})
        or True
    )


def test_partitions_that_are_no_buckets_are_named(tmp_path: Path) -> None:
    foreign(tmp_path, old_rows(hour=[f"20261120{n % 3}" for n in range(6)]))
    assert "Its partitions hour=202611200, hour=202611201, hour=202611202 are no buckets" in refusal(tmp_path)


def test_everything_that_is_in_the_way_is_said_at_once(tmp_path: Path) -> None:
    rows = old_rows(_offset=["five"] * 6)
    fields = [f.with_nullable(f.name != "note") for f in rows.schema]
    lake = str(tmp_path / "lake" / "clicks")
    write_deltalake(
        lake, rows.cast(pa.schema(fields)), partition_by=["legacy"], configuration={"delta.appendOnly": "true"}
    )
    text = refusal(tmp_path)
    for reason in (
        "It is append-only", "It is partitioned by legacy, the pipeline buckets by hour", "note must not be null",
        "Its partition column legacy is long; buckets are strings", "Column _offset is string by now, and not long",
    ):  # fmt: skip
        assert reason in text


def test_a_protocol_that_is_too_high_is_refused_with_its_features(tmp_path: Path) -> None:
    foreign(tmp_path, configuration={"delta.enableDeletionVectors": "true"})
    text = refusal(tmp_path)
    assert "Its protocol is reader 3, writer 7 (features: " in text
    assert "deletionVectors" in text


def test_mapped_columns_are_refused(tmp_path: Path) -> None:
    foreign(tmp_path)
    state = main_table("clicks", config(tmp_path)).snapshot().state
    metadata = {**state.metadata, "configuration": {"delta.columnMapping.mode": "name"}}
    texts = obstacles(replace(state, metadata=metadata), [], ["hour"])
    assert texts[0].startswith("Its columns are mapped by name")


def test_plain_files_are_refused_with_a_way(tmp_path: Path) -> None:
    settings = config(tmp_path, start=START, table={"location": str(tmp_path / "lake" / "clicks"), "format": "parquet"})
    with pytest.raises(ConfigError, match=r"plain files are not adopted.*CONVERT TO DELTA"):
        adopted(settings)


def test_the_verb_as_a_person_sees_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    foreign(tmp_path)
    path = tmp_path / "headrace.yaml"
    settings = config(tmp_path, start=START)
    path.write_text(yaml.safe_dump(settings.model_dump(mode="json", exclude_unset=True)))
    monkeypatch.setenv("COLUMNS", "100")
    result = CliRunner().invoke(app, ["table", "adopt", str(path)])
    assert result.exit_code == 0, result.output
    text = " ".join(result.stdout.split())
    assert "has 6 rows in 5 files of 3 buckets, at version 1" in text
    assert "Nothing was changed." in text
    result = CliRunner().invoke(app, ["table", "adopt", str(path), "--yes"])
    assert "Written as version 2" in " ".join(result.stdout.split())
