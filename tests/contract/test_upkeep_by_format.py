"""What is done with tables and dead letters, and what commands say, in each format of values.

Each test declares a feature of the table in docs/TYPES.md, as those of test_features_by_format.py do.
"""

import json
from collections.abc import Callable
from datetime import timedelta
from pathlib import Path
from typing import Any
from uuid import uuid4

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import yaml
from confluent_kafka import Producer

from headrace.recovery.backfill import source_factory
from headrace.recovery.backfill.fill_gaps import BackfillRequest, fill_gaps
from headrace.recovery.reprocess.run import SourceChoice
from headrace.writer.audit.audit import audit
from headrace.writer.cli.fix.delete_rows import run_deletion
from headrace.writer.cli.look.explain import BatchCommit, explain_commit
from headrace.writer.config.loader import load
from headrace.writer.driver.sealing.steps import beside_seals, seal_due
from headrace.writer.maintenance.compaction.compactor import Compactor, here
from headrace.writer.maintenance.dead_letters.replay import DeadLetterReplay
from headrace.writer.maintenance.dead_letters.selection import Selection
from headrace.writer.maintenance.deletion.pipeline_deletion import DeletionRequest
from headrace.writer.maintenance.deletion.row_keys import where
from headrace.writer.maintenance.local_pipeline import open_local_pipeline
from headrace.writer.maintenance.record_commit import RecordTable
from headrace.writer.preflight.checks import source_checks
from headrace.writer.preflight.samples import preview, staged_sample
from headrace.writer.sealing.sealer import Sealer
from headrace.writer.status.commit_explanation import find_explanation
from headrace.writer.table.log.operations.seals import Closing
from tests.support.audits import run_audit
from tests.support.backfill_gaps import Silent, fill_from_archives, only_gap, skip_offsets
from tests.support.format_features import (
    CASES,
    ORDERS,
    FormatCase,
    Order,
    Refusal,
    check_refused,
    check_rows,
    failures_of,
    feature,
    headers_of,
    refusals_of,
    rows_of,
    run_command,
)
from tests.support.local_driver import Driver
from tests.support.record_columns import check_sound
from tests.support.reprocess_lake import run_reprocess
from tests.support.sample_records import NOW

HOUR = timedelta(hours=1)
MUCH_LATER = NOW + timedelta(days=3_650)


# --- dead letters -----------------------------------------------------------------------------------------------------


@feature("Dead letters: of values that cannot be read", absent={"raw": "every value is a row"})
def test_an_unreadable_value_is_a_dead_letter(case: FormatCase, tmp_path: Path) -> None:
    driver = case.start(tmp_path)
    driver.carry([case.records({**ORDERS, 3: case.unreadable})], {0: 6})
    check_rows(driver, case, {offset: order for offset, order in ORDERS.items() if offset != 3})
    assert {offset: outcome for offset, (outcome, _) in failures_of(driver).items()} == {3: "dead_letter"}
    check_sound(driver)


@feature("Dead letters: replay after a fix", notes={"raw": "of a header that does not have its type, or a time"})
def test_a_dead_letter_is_replayed_once_its_cause_is_gone(case: FormatCase, tmp_path: Path) -> None:
    strict: dict[str, Any] = {}
    fixed: dict[str, Any] = {}
    orders: dict[int, Order] = {**ORDERS, 3: Order(3, coupon="c")}
    if case.name == "json":
        strict = fixed = {"columns": {"undeclared": "dead_letter"}}
    if not case.has_members:
        fixed = {"event_time": {**case.settings["event_time"], "max_age": "90 d"}}
        orders[3] = Order(3, at=NOW - timedelta(days=60))
    driver = case.start(tmp_path, **strict)
    driver.carry([case.records(orders)], {0: 6})
    assert list(failures_of(driver)) == [3]
    later = case.start(tmp_path, later=True, **fixed)
    result = DeadLetterReplay("clicks", later.config, later.schemas).run(Selection(), NOW)
    assert (result.rows, failures_of(later)) == (1, {})
    check_rows(later, case, orders)
    check_sound(later)


@feature("Dead letters: `headrace dlq show`, with the decoded record")
def test_a_dead_letter_is_shown(case: FormatCase, tmp_path: Path) -> None:
    file = case.config_file(tmp_path)
    driver = Driver(tmp_path, configuration=load(file), schemas=case.schemas(later=False))
    driver.start()
    old = Order(1, at=NOW - timedelta(days=60))
    driver.carry([case.records({0: Order(0), 1: old})], {0: 2})
    (line,) = run_command("dlq", "show", file, "--values", "--json").splitlines()
    shown = json.loads(line)
    assert (shown["outcome"], shown["schema_id"]) == ("quarantined", 1 if case.names_schema else None)
    if case.has_members:
        assert shown["decoded"]["user"]["email"] == old.email
    else:
        assert shown["decoded"]["id"] == 1
    (group,) = json.loads(run_command("dlq", "list", file, "--json"))["groups"]
    assert (group["records"], group["schema_id"]) == (1, shown["schema_id"])


# --- records again ----------------------------------------------------------------------------------------------------


def table_with_gap(case: FormatCase, root: Path, form: str = "delta", **settings: Any) -> Driver:
    """Start a table that has the offsets 0 and 5, and a gap between them."""
    driver = case.start(root, form, **settings)
    driver.carry([case.records({0: ORDERS[0]})], {0: 1})
    skip_offsets(driver, 5)
    driver.start()
    driver.carry([case.records({5: ORDERS[5]})], {0: 6})
    return driver


@feature("Backfill: from an archive of records")
def test_an_archive_of_records_fills_a_gap(case: FormatCase, tmp_path: Path, form: str) -> None:
    driver = table_with_gap(case, tmp_path, form)
    records = case.records({offset: ORDERS[offset] for offset in range(1, 5)})
    (tmp_path / "archive").mkdir()
    pq.write_table(pa.Table.from_batches([records]), tmp_path / "archive" / "part.parquet")
    fill_from_archives(driver, tmp_path / "archive")
    check_rows(driver, case, ORDERS)
    check_sound(driver)


@pytest.mark.slow
@feature("Backfill: from Kafka")
def test_kafka_fills_a_gap(case: FormatCase, tmp_path: Path, bootstrap: str, topic: Callable[..., str]) -> None:
    """From a topic that mirrors that of the gap, from its first offset on."""
    name = topic()
    producer = Producer({"bootstrap.servers": bootstrap})
    for offset, order in ORDERS.items():
        producer.produce(
            name,
            case.value(order),
            f"k{offset}".encode(),
            timestamp=int(NOW.timestamp() * 1000),
            headers=list(headers_of(order).items()),
        )
    producer.flush()
    kafka = {"bootstrap_servers": bootstrap, "request_timeout": "30 s"}
    driver = table_with_gap(case, tmp_path, sections={"kafka": kafka})
    filling = RecordTable("clicks", driver.config, driver.schemas)
    source = source_factory.mirror(filling, only_gap(driver), f"{bootstrap}/{name}", ["0:0=0"])
    fill_gaps(filling, lambda _: [source], BackfillRequest(by="ann"), Silent())
    check_rows(driver, case, ORDERS)
    check_sound(driver)


@feature("Backfill: from an archive of decoded rows", absent={"raw": "its rows are the records"})
def test_an_archive_of_rows_fills_a_gap(case: FormatCase, tmp_path: Path) -> None:
    other = case.start(tmp_path / "other")
    other.carry([case.records(ORDERS)], {0: 6})
    driver = table_with_gap(case, tmp_path)
    fill_from_archives(driver, Path(other.lake))
    check_rows(driver, case, ORDERS)
    check_sound(driver)


@feature("Raw table beside, and a backfill from it")
def test_a_raw_table_fills_a_gap(case: FormatCase, tmp_path: Path) -> None:
    before = case.start(tmp_path / "before", table={"raw": {"location": str(tmp_path / "before" / "raw")}})
    records: dict[int, Order | bytes | None] = {**ORDERS, 6: None, 7: case.unreadable or b"any"}
    before.carry([case.records(records)], {0: 8})
    kept = rows_of(before, place=before.settings.table.raw.location)
    assert {offset: row["value"] for offset, row in kept.items()} == {
        offset: case.value(record) if isinstance(record, Order) else record for offset, record in records.items()
    }
    driver = table_with_gap(case, tmp_path)
    filling = RecordTable("clicks", driver.config, driver.schemas)
    source = source_factory.raw(filling, before.settings.table.raw.location)
    fill_gaps(filling, lambda _: [source], BackfillRequest(by="ann"), Silent())
    check_rows(driver, case, ORDERS)
    check_sound(driver)


@feature("Reprocess, from the raw table")
def test_buckets_are_made_anew(case: FormatCase, tmp_path: Path) -> None:
    raw = {"raw": {"location": str(tmp_path / "raw")}}
    orders = {**ORDERS, 3: Order(3, coupon="c")}
    first = case.start(tmp_path, table=raw)
    first.carry([case.records(orders)], {0: 6})
    event_time = {**case.settings["event_time"], "clocks": [{"shift": "-3 h"}]}
    driver = case.start(tmp_path, later=True, table=raw, event_time=event_time)
    run_reprocess(driver, source=SourceChoice("raw"))
    check_rows(driver, case, orders)
    assert {row["hour"] for row in rows_of(driver).values()} == {f"{NOW - 4 * HOUR:%Y-%m-%dT%H}"}
    check_sound(driver)


@feature("Shadow and promote")
def test_a_shadow_takes_the_place_of_the_table(
    case: FormatCase, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    file = case.config_file(tmp_path)
    first = Driver(tmp_path, configuration=load(file), schemas=case.schemas())
    first.start()
    first.carry([case.records(ORDERS)], {0: 6})
    place = str(tmp_path / "shadow")
    document = yaml.safe_load(file.read_text())
    document["pipelines"]["clicks"]["event_time"]["clocks"] = [{"shift": "-3 h"}]
    other = tmp_path / "other.yaml"
    other.write_text(yaml.safe_dump(document))

    def run_writer(run_file: Any, *, once: bool) -> int:
        assert once
        driver = Driver(tmp_path, configuration=run_file.config, schemas=case.schemas())
        driver.start()
        driver.carry([case.records(ORDERS)], {0: 6})
        return 0

    monkeypatch.setattr("headrace.writer.cli.maintain.shadow.run_writer", run_writer)
    monkeypatch.setattr("headrace.writer.core.logging.set_up", lambda: None)
    run_command("shadow", file, "--with", other, "--location", place)
    shown = json.loads(run_command("promote", file, "--with", other, "--shadow", place, "--yes", "--json"))
    assert shown["done"]
    document["pipelines"]["clicks"]["table"]["location"] = place
    other.write_text(yaml.safe_dump(document))
    driver = Driver(tmp_path, configuration=load(other), schemas=case.schemas())
    check_rows(driver, case, ORDERS)
    assert audit(driver.config, "clicks", since=None, deep=True).adds_up


# --- tables -----------------------------------------------------------------------------------------------------------


@feature("Compaction")
def test_small_files_become_one(case: FormatCase, tmp_path: Path, form: str) -> None:
    driver = case.start(tmp_path, form)
    for offset, order in ORDERS.items():
        driver.carry([case.records({offset: order})], {0: offset + 1})
    snapshot = driver.table.snapshot()
    (bucket,) = driver.table.buckets()
    compactor = Compactor("clicks", driver.settings, driver.table, driver.config.stores)
    pieces = compactor.plan(snapshot, [bucket], open_too=True)[bucket]
    (result,) = compactor.carry_out(snapshot, pieces, here)
    assert (result.removed, result.files) == (6, 1)
    check_rows(driver, case, ORDERS)
    check_sound(driver)


@feature("Dedupe, within a bucket and across buckets", notes={"raw": "by columns of keys and headers"})
def test_repeats_are_taken_out(case: FormatCase, tmp_path: Path) -> None:
    driver = case.start(tmp_path, compact={"at_seal": True, "dedupe": {"key": ["id"], "window": "5 h"}})
    orders = {0: Order(0), 1: Order(1), 2: Order(1), 3: Order(0, at=NOW - 3 * HOUR)}
    driver.carry([case.records(orders)], {0: 4})
    driver.table.append(Closing(uuid4().hex, NOW + HOUR, {"reason": "watermark"}), driver.table.snapshot())
    sealer = Sealer("clicks", driver.config)
    beside_seals(sealer, driver.config, here)
    seal_due(sealer, MUCH_LATER)
    rows = rows_of(driver)
    assert sorted(row["id"] for row in rows.values()) == [0, 1]
    assert run_audit(driver).adds_up


@feature("Deletion of rows by a column", notes={"raw": "by columns of keys and headers"})
def test_rows_are_deleted_by_a_column(case: FormatCase, tmp_path: Path, form: str) -> None:
    driver = case.start(tmp_path, form)
    driver.carry([case.records({**ORDERS, 6: Order(3, at=NOW - timedelta(days=60))})], {0: 7})
    request = DeletionRequest("clicks", where("id = 3"), NOW)
    report = run_deletion(driver.config, request, driver.schemas, write=True).document()
    assert report["table"]["rows"] == 1
    check_rows(driver, case, {offset: order for offset, order in ORDERS.items() if offset != 3})
    # The one that was too old goes, too.
    assert failures_of(driver) == {}
    assert run_audit(driver).adds_up


@feature("Audit")
def test_an_audit_adds_up(case: FormatCase, tmp_path: Path) -> None:
    driver = case.start(tmp_path, event_time={"field": "_kafka_time"})
    driver.carry([case.records({**ORDERS, 6: None}), case.records({7: Order(7)}, kafka_time=MUCH_LATER)], {0: 8})
    report = run_audit(driver)
    assert report.adds_up
    (line,) = report.reconciliation.lines
    outcomes = {name: count for name, count in line.outcomes.items() if count}
    # A raw record without a value is a row.
    expected = {"rows": 6, "tombstones": 1} if case.has_members else {"rows": 7}
    assert outcomes == {"read": 8, "quarantined": 1, **expected}


# --- commands that look -----------------------------------------------------------------------------------------------


@feature("`headrace preview`: raw, decoded, assigned, staged")
def test_a_preview_shows_each_step(case: FormatCase, tmp_path: Path) -> None:
    pipeline = open_local_pipeline("clicks", case.config(tmp_path), case.schemas())
    batch = case.records({**ORDERS, 6: None, 7: Order(7, at=NOW - timedelta(days=60))})
    raw = preview.describe_bytes(batch, pipeline.config.pipelines["clicks"].wire_of_values)
    assert [record["schema_id"] for record in raw] == [1 if case.names_schema else None] * 6 + [None] + [
        1 if case.names_schema else None
    ]
    rows = preview.describe_rows(pipeline, batch)
    assert [record["schema_id"] for record in rows] == [record["schema_id"] for record in raw]
    row = {**rows[1]["row"], **(rows[1]["row"].get("user") or {})}
    assert {name: row[name] for name in case.row(ORDERS[1])} == case.row(ORDERS[1])
    assigned = preview.describe_buckets(pipeline, batch, NOW)
    assert [record["outcome"] for record in assigned] == [
        *["row"] * 6,
        "tombstone" if case.has_members else "quarantined",
        "quarantined",
    ]
    assert assigned[0]["bucket"] == {"hour": f"{NOW - HOUR:%Y-%m-%dT%H}"}
    staged = staged_sample.stage_sample(pipeline, batch, NOW)
    assert staged.lines() or staged


@feature("`headrace validate`: a sample of the records")
def test_a_sample_is_judged(case: FormatCase, tmp_path: Path) -> None:
    pipeline = open_local_pipeline("clicks", case.config(tmp_path), case.schemas(later=False))
    findings = {f.check: f for f in source_checks.sample_findings(pipeline, case.records(ORDERS), NOW)}
    assert {check: finding.status for check, finding in findings.items()} == dict.fromkeys(source_checks.SAMPLED, "ok")
    assert "6 of 6 values" in findings["decode"].message
    (schemas,) = source_checks.decoder_findings(pipeline.plan)
    assert schemas.message == f"{'id 1' if case.names_schema else 'values that name no schema'}: decoded natively"


def test_a_sample_of_two_formats_is_judged(tmp_path: Path) -> None:
    """Of one topic; the values of a third format are said to be of none."""
    avro = CASES["avro"]
    both = {**CASES["json"].settings, "formats": ["avro", "json"]}
    pipeline = open_local_pipeline("clicks", avro.config(tmp_path, **both), avro.schemas())
    values = {0: avro.value(Order(0)), 1: avro.value(Order(1)), 2: CASES["json"].value(Order(2)), 3: None}
    for odd, status in ((None, "ok"), (b"<order/>", "warning")):
        batch = avro.records({**values, **({} if odd is None else {4: odd})})
        findings = {f.check: f for f in source_checks.sample_findings(pipeline, batch, NOW)}
        assert findings["wire"].status == status
        assert "1 are JSON without one" in findings["wire"].message
        assert findings["decode"].message == "3 of 3 values are decoded"


def run_test(case: FormatCase, root: Path, records: dict[str, Any], expect: dict[str, Any], code: int = 0) -> str:
    """Run `headrace test` on records of a file."""
    file = case.config_file(root)
    document: dict[str, Any] = {"config": file.name, "now": NOW.isoformat(), "records": records, "expect": expect}
    if case.names_schema:
        document["schema"] = "1.json"
    test = root / "orders.test.yaml"
    test.write_text(yaml.safe_dump(document))
    return run_command("test", test, code=code)


@feature("`headrace test`", notes={"json": "a value without a schema", "raw": "a value is text, or `hex`"})
def test_records_of_a_file_are_tested(case: FormatCase, tmp_path: Path) -> None:
    order = Order(1)
    headers = {"id": "1", "at": f"{order.at.timestamp() * 1000:.0f}", "country": "at"}
    if case.has_members:
        good: dict[str, Any] = {"value": case.example(order)}
        row: dict[str, Any] = {"id": 1, "country": "at", "tags": ["new", "paid"]}
    else:
        good = {"value": case.value(order).decode(), "headers": headers}
        row = {"id": 1, "country": "at", "value": case.value(order).hex()}
    records = {"good": good, "odd": {"hex": "ff00", **({} if case.has_members else {"headers": headers})}}
    odd: Any = {"exit": "dead_letter"} if case.has_members else {"row": {"id": 1}}
    expect = {"good": {"bucket": f"hour={NOW - HOUR:%Y-%m-%dT%H}", "row": row}, "odd": odd}
    assert "2 passed" in run_test(case, tmp_path, records, expect)


def test_a_raw_value_of_a_file_is_text(tmp_path: Path) -> None:
    shown = run_test(CASES["raw"], tmp_path, {"odd": {"value": {"id": 1}}}, {"odd": "row"}, code=2)
    assert "records.odd.value: a raw value is text; put it in quotes" in shown


@feature("`headrace explain`", notes={"json": "with the members that fit no column"})
def test_a_commit_is_explained(case: FormatCase, tmp_path: Path) -> None:
    unfit = {"columns": {"misfit": "null"}} if case.name == "json" else {}
    driver = case.start(tmp_path, **unfit)
    driver.carry([case.records({**ORDERS, 6: case.unreadable})], {0: 7})
    commit = explain_commit(find_explanation(driver.config, "clicks", batch=None, version=None, offset=None))
    assert isinstance(commit, BatchCommit)
    assert commit.unfit_members == ({"nulled": 1} if case.name == "json" else {})
    outcomes = {name: count for name, count in commit.records.items() if count and name != "read"}
    # Raw records without a value lack the header with the event time.
    odd = "dead_letters" if case.names_schema else "quarantined"
    assert outcomes == {"rows": 6, odd: 1}


@feature(
    "`headrace schema plan`",
    notes={"json": "a file with other declared columns"},
    refusals={
        "raw": Refusal(
            "values of the format raw name no schema",
            lambda case, root: run_command("schema", "plan", case.config_file(root), "--file", root / "headrace.yaml"),
        )
    },
)
def test_a_schema_is_planned(case: FormatCase, tmp_path: Path) -> None:
    file = case.config_file(tmp_path)
    shown = json.loads(run_command("schema", "plan", file, "--file", case.later_schema_file(tmp_path), "--json"))
    assert (shown["compatible"], shown["outcome"]) == (True, "row")
    effects = [(effect["effect"], effect["column"], effect["now"]) for effect in shown["effects"]]
    assert effects == [("adds", "coupon", "string")]


@feature("`headrace ddl`, for each engine")
def test_engines_are_told_of_the_table(case: FormatCase, tmp_path: Path) -> None:
    file = case.config_file(tmp_path)
    driver = Driver(tmp_path, configuration=load(file), schemas=case.schemas())
    driver.start()
    driver.table.grow(list(driver.row_columns()), driver.epoch)
    for engine in ("trino", "presto", "spark", "duckdb", "dbt"):
        text = run_command("ddl", file, "--engine", engine)
        assert "clicks" in text


@pytest.mark.parametrize(("case", "refusal"), refusals_of(__name__))
def test_what_a_format_does_not_offer_is_refused(case: FormatCase, refusal: Refusal, tmp_path: Path) -> None:
    check_refused(case, refusal, tmp_path)
