"""Event specs in a pipeline's own table: each offset ends once, also as filtered, and the log says by which version."""

import json
from dataclasses import replace
from datetime import timedelta
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from typer.testing import CliRunner

from headrace.recovery.backfill import source_factory
from headrace.recovery.backfill.fill_gaps import BackfillRequest, fill_gaps
from headrace.writer.audit.audit import audit
from headrace.writer.batch.dead_letters import DEAD_LETTERS
from headrace.writer.batch.task import Piece
from headrace.writer.cli.fix.delete_rows import run_deletion
from headrace.writer.cli.main import app
from headrace.writer.columns.schema_plan import PROVENANCE, SchemaPlan
from headrace.writer.commit import builder
from headrace.writer.commit.event_specs import check_specs, find_spec_problems
from headrace.writer.config.pipelines import Config
from headrace.writer.core.errors import ConfigError, Fenced
from headrace.writer.core.offsets import OffsetRange, TopicPartition
from headrace.writer.driver.start.pipeline_start import enter_specs
from headrace.writer.maintenance.dead_letters.replay import DeadLetterReplay
from headrace.writer.maintenance.dead_letters.selection import Selection
from headrace.writer.maintenance.deletion.pipeline_deletion import DeletionRequest
from headrace.writer.maintenance.deletion.row_keys import where
from headrace.writer.maintenance.local_pipeline import open_local_pipeline
from headrace.writer.maintenance.record_commit import RecordTable
from headrace.writer.preflight.checks.source_checks import decoder_findings
from headrace.writer.status.commit_explanation import KafkaOffset, search_ledger
from headrace.writer.status.model import Totals, event_time_newest
from headrace.writer.table.factory import all_tables
from headrace.writer.table.ledger.segment_reader import read_segments
from tests.support.backfill_gaps import Silent, skip_offsets
from tests.support.local_driver import Died, Driver, log
from tests.support.sample_records import EVENT, NOW, WIDER, Schemas, config, event, value

P0 = TopicPartition("clicks", 1, 0)
SPEC = {
    "where": "id % 3 <> 0", "sample": {"share": "50 %", "by": "id"}, "columns": {"exclude": ["at", "note"]},
    "derive": {"ratio": "1000 / (id - 20)"},
}  # fmt: skip


def carried(root: Path, form: str = "delta", **settings: Any) -> Driver:
    driver = Driver(root, form, specs={"Event": SPEC}, **settings)
    driver.start()
    values: dict[int, bytes | None] = {offset: event(offset) for offset in range(60)}
    driver.carry([log({**values, 7: None, 8: b"{}"})], {0: 60})
    return driver


def audited(config: Config, *, deep: bool = True) -> Any:
    report = audit(config, "clicks", since=None, deep=deep)
    assert report.adds_up, report.problems
    return report.reconciliation


def test_each_offset_ends_once_and_the_rules_add_up(tmp_path: Path, form: str) -> None:
    driver = carried(tmp_path, form)
    report = audited(driver.config)
    (line,) = report.lines
    assert line.outcomes["read"] == 60 == sum(line.outcomes[name] for name in line.outcomes if name != "read")
    assert line.outcomes["tombstones"] == 1
    assert line.outcomes["filtered"] == sum(report.filtered["Event"].values()) > 20
    assert report.filtered["Event"]["where"] == 20
    assert set(driver.table.rows().to_table().column_names) & {"id", "at", "note", "ratio"} == {"id", "ratio"}
    seen = driver.table.snapshot().newest_event_time(P0)
    assert seen == int(NOW.timestamp() * 1e6), "the newest event is filtered, and moves the watermark"


def test_a_failing_row_is_a_dead_letter_alone(tmp_path: Path) -> None:
    spec = {"derive": {"ratio": "1000 / (id - 20)"}, "cast": {"note": "int"}}
    driver = Driver(tmp_path, specs={"E*": spec})
    driver.start()
    driver.carry([log({offset: event(offset) for offset in range(60)})], {0: 60})
    letters = driver.side(driver.dead_letters).rows().to_table(columns=["_offset", "error"]).sort_by("_offset")
    errors = dict(zip(letters["_offset"].to_pylist(), letters["error"].to_pylist(), strict=True))
    assert errors.pop(20) == "spec 'E*': derive.ratio: Divide by zero error"
    assert errors == dict.fromkeys(range(0, 60, 3), "spec 'E*': cast.note: the value is no int")
    assert driver.table.rows().count_rows() == 60 - 21
    audited(driver.config)


def test_a_table_without_specs_has_no_fact_of_them(tmp_path: Path) -> None:
    plain = Driver(tmp_path / "plain")
    plain.start()
    plain.carry([log({offset: event(offset) for offset in range(6)})], {0: 6})
    (commit,) = (entry for entry in plain.table.history() if entry.kind == "batch")
    assert "filtered" not in json.dumps(commit.facts)
    assert "specs" not in commit.facts
    entries = ((version, actions) for version, actions in plain.table.entries(-1))
    assert not any(
        "filtered" in committed_range.outcomes
        for page in read_segments(entries, "clicks")
        for committed_range in page.committed_ranges
    )


def test_a_change_of_a_spec_is_an_entry_and_ranges_keep_their_version(tmp_path: Path) -> None:
    driver = carried(tmp_path, interval=4)
    settings = driver.config
    for version, spec in ((2, {"where": "id < 70"}), (2, {"where": "id < 70"}), (3, None)):
        again = Driver(tmp_path, interval=4, **({} if spec is None else {"specs": {"Event": spec}}))
        again.start()
        assert again.table.snapshot().specs == version
        end = again.table.snapshot().frontier(P0) or 0
        again.carry([log({offset: event(offset, event_time=NOW) for offset in range(end, end + 20)})], {0: end + 20})
        settings = again.config
    report = audited(settings)
    assert report.total("read") == 120
    assert report.filtered["Event"]["where"] == 20 + 10 + 20
    kinds = [entry.facts for entry in again.table.history() if entry.kind == "specs"]
    assert [facts["specs_version"] for facts in kinds] == [3, 2, 1][: len(kinds)]
    from headrace.writer.audit.table_history import read_pipeline_history

    stretches = [
        committed_range
        for page in read_pipeline_history(settings, "clicks").main.segments
        for committed_range in page.committed_ranges
    ]
    assert {(stretch.range.start, stretch.specs) for stretch in stretches} == {(0, 1), (60, 2), (100, 3)}


def test_explain_says_which_version_wrote_an_offset(tmp_path: Path) -> None:
    driver = carried(tmp_path)
    file = tmp_path / "pipelines.yaml"
    file.write_text(json.dumps(driver.config.model_dump(mode="json", exclude_unset=True)))
    result = CliRunner().invoke(app, ["explain", str(file), "--json"])
    assert result.exit_code == 0, result.output
    assert json.loads(result.stdout)["pipelines"]["clicks"]["specs"]["version"] == 1
    result = CliRunner().invoke(app, ["explain", str(file), "--offset", "clicks/0:17"])
    assert "event specs" in result.output
    assert "version 1" in result.output
    result = CliRunner().invoke(app, ["explain", str(file), "--offset", "clicks/0:99"])
    assert result.exit_code == 1
    assert "no commit with clicks/0:99" in str(result.exception)


def test_explain_knows_from_the_ledger_what_is_a_gap(tmp_path: Path) -> None:
    driver = Driver(tmp_path, specs={"Event": {"where": "id > 3"}})
    driver.start()
    driver.carry([log({offset: event(offset) for offset in range(4)})], {0: 4})
    skip_offsets(driver, 8)
    assert "by version 1 of the event specs" in search_ledger(driver.config, "clicks", KafkaOffset("clicks", 0, 3))
    assert "lies in a gap" in search_ledger(driver.config, "clicks", KafkaOffset("clicks", 0, 5))


def test_a_dead_letter_that_a_spec_leaves_out_is_filtered_by_a_replay(tmp_path: Path) -> None:
    schemas = Schemas({1: EVENT}, [1])
    driver = Driver(tmp_path, schemas=schemas, specs={"Event": {"where": "id <> 3"}})
    driver.start()
    driver.carry(
        [log({offset: value(9, WIDER, {"id": offset, "at": NOW, "note": None, "extra": 1}) for offset in range(6)})],
        {0: 6},
    )
    assert audited(driver.config).total("dead_letters") == 6
    later = Schemas({1: EVENT, 9: WIDER}, [1])
    done = DeadLetterReplay("clicks", driver.config, later).run(Selection(), NOW)
    assert (done.chosen, done.rows, done.filtered, done.failed) == (6, 5, 1, {})
    report = audited(driver.config)
    assert (report.total("rows"), report.total("filtered"), report.filtered) == (5, 1, {"Event": {"where": 1}})
    other = driver.config.model_copy(
        update={"pipelines": {"clicks": driver.settings.model_copy(update={"specs": {}})}}
    )  # fmt: skip
    with pytest.raises(ConfigError, match="not those by which its writer runs"):
        DeadLetterReplay("clicks", other, later).run(Selection(), NOW)


def test_records_that_fills_and_replays_filter_add_up_in_audits_since_any_version(tmp_path: Path) -> None:
    archive = {"location": str(tmp_path / "before"), "raw": str(tmp_path / "raw")}
    before = Driver(tmp_path, table=archive)
    before.start()
    before.carry([log({offset: event(offset) for offset in range(10)})], {0: 10})
    driver = Driver(tmp_path, specs={"Event": {"where": "id % 3 <> 1"}}, limits={"max_failed_ratio": 1})
    driver.start()
    skip_offsets(driver, 10)
    driver.start()
    rows = {offset: {"id": offset, "at": NOW, "note": None, "extra": 1} for offset in range(10, 16)}
    driver.carry([log({offset: value(9, WIDER, row) for offset, row in rows.items()})], {0: 16})
    filling, wish = RecordTable("clicks", driver.config, driver.schemas), BackfillRequest(by="ann")
    fill_gaps(filling, lambda _: [source_factory.raw(filling, archive["raw"])], wish, Silent())
    DeadLetterReplay("clicks", driver.config, Schemas({1: EVENT, 9: WIDER}, [1])).run(Selection(), NOW)
    assert audited(driver.config).filtered == {"Event": {"where": 5}}
    for version in range(driver.table.snapshot().version + 1):
        report = audit(driver.config, "clicks", since=version, deep=False)
        assert report.adds_up, (version, report.problems)


def test_a_backfill_ends_where_the_writer_is_started_with_other_specs(tmp_path: Path) -> None:
    """Else offsets of the second version would be made rows by the first."""
    archive = {"location": str(tmp_path / "before"), "raw": str(tmp_path / "raw")}
    before = Driver(tmp_path, table=archive)
    before.start()
    before.carry([log({offset: event(offset) for offset in range(12)})], {0: 12})
    driver = Driver(tmp_path, specs={"Event": {"where": "id <> 1"}})
    driver.start()
    skip_offsets(driver, 10)
    driver.start()

    class Restarting(Silent):
        def on_chunk(self, *_: Any) -> None:
            Driver(tmp_path, specs={"Event": {"where": "id > 7"}}).start()

    filling = RecordTable("clicks", driver.config, driver.schemas)
    wish = BackfillRequest(rows_max=4, by="ann")
    with pytest.raises(ConfigError, match="not those by which its writer runs"):
        fill_gaps(filling, lambda _: [source_factory.raw(filling, archive["raw"])], wish, Restarting())
    report = audited(driver.config)
    assert (report.total("rows"), report.total("filtered")) == (3, 1)


def test_rows_that_are_deleted_take_the_dead_letters_with_them_of_which_an_expression_failed(tmp_path: Path) -> None:
    fails = {"cast": {"note": "int"}, "derive": {"ratio": "1 / (id - 1)", "id": "id * 10"}}
    driver = Driver(tmp_path, specs={"Event": fails}, limits={"max_failed_ratio": 1})
    driver.start()
    driver.carry([log({offset: event(offset) for offset in range(4)})], {0: 4})
    assert (audited(driver.config).total("dead_letters"), audited(driver.config).total("rows")) == (3, 1)
    filtering = Driver(tmp_path, specs={"Event": {"where": "id <> 1", **fails}})
    filtering.start()
    report = run_deletion(
        filtering.config,
        DeletionRequest("clicks", where("id IN (0, 10)"), NOW),
        driver.schemas,
        write=True,
    )
    dead_letter_count = report.dead_letters
    assert dead_letter_count is not None
    assert (dead_letter_count.dead_letters, dead_letter_count.meant, dead_letter_count.undecodable) == (3, 2, 0)
    letters = driver.side(driver.dead_letters).rows().to_table(columns=["_offset"])
    assert letters["_offset"].to_pylist() == [3]
    assert audited(filtering.config).total("dead_letters") == 3


def test_a_new_schema_widens_what_the_spec_sees(tmp_path: Path) -> None:
    schemas = Schemas({1: EVENT, 2: WIDER}, [1])
    spec = {"where": "coalesce(id, 0) >= 0", "columns": {"exclude": ["at"]}}
    driver = Driver(tmp_path, schemas=schemas, specs={"Event": spec})
    driver.start()
    driver.carry([log({offset: event(offset) for offset in range(5)})], {0: 5})
    row = {"id": 5, "at": NOW - timedelta(hours=1), "note": None, "extra": 7}
    driver.carry([log({5: value(2, WIDER, row), 6: event(6)})], {0: 7})
    rows = driver.table.rows().to_table(columns=["id", "extra"]).sort_by("id").to_pylist()
    assert [one["extra"] for one in rows] == [None] * 5 + [7, None]
    audited(driver.config)


def test_a_record_type_that_comes_later_without_the_event_time_is_quarantined_alone(tmp_path: Path) -> None:
    bare = {**EVENT, "name": "Bare", "fields": EVENT["fields"][:1]}
    schemas = Schemas({1: EVENT, 2: bare}, [1])
    specs = {"Event": {"columns": {"exclude": ["at"]}}, "Bare": {"where": "id <> 2"}}
    driver = Driver(tmp_path, schemas=schemas, specs=specs, limits={"max_failed_ratio": 1})
    driver.start()
    driver.carry([log({0: event(0), **{offset: value(2, bare, {"id": offset}) for offset in range(1, 4)}})], {0: 4})
    report = audited(driver.config)
    assert (report.total("rows"), report.total("quarantined"), report.total("filtered")) == (1, 2, 1)


def test_status_adds_up_what_was_filtered(tmp_path: Path) -> None:
    driver, sums = carried(tmp_path), Totals()
    for facts in driver.table.recent_commits(10):
        sums.add(facts)
    assert sums.records["filtered"] == sums.filtered["Event"].total()
    assert event_time_newest(facts) == NOW, "the newest event is filtered"
    assert sums.records["read"] == sum(sums.records[name] for name in sums.records if name != "read")


@pytest.mark.parametrize(
    ("spec", "message"),
    [
        ({"where": "idd > 1"}, "where: no schema of its records has a column 'idd'; did you mean 'id'?"),
        ({"where": "id > random()"}, "where: the function random is not allowed"),
        ({"columns": {"exclude": ["nots"]}}, "no schema of its records has 'nots'; did you mean 'note'?"),
        ({"sample": {"share": 0.5, "by": "at"}}, "sample.by: 'at' is timestamp"),
    ],
)  # fmt: skip
def test_a_start_refuses_a_spec_that_no_schema_fits(tmp_path: Path, spec: dict[str, Any], message: str) -> None:
    driver = Driver(tmp_path, specs={"Event": spec})
    before = driver.table.snapshot()
    with pytest.raises(ConfigError, match=r"pipelines\.clicks\.specs\.Event") as raised:
        driver.start()
    assert message in str(raised.value)
    assert driver.table.snapshot().specs == before.specs == 0


def test_an_old_bucket_of_a_filtered_record_is_not_late(tmp_path: Path) -> None:
    driver = Driver(tmp_path, specs={"Event": {"where": "id > 100"}})
    driver.start()
    driver.carry([log({0: event(0, event_time=NOW - timedelta(days=400)), 1: event(1)})], {0: 2})
    report = audited(driver.config)
    assert (report.total("filtered"), report.total("quarantined")) == (2, 0)
    assert replace(report, lines=()).total("filtered") == 0


@pytest.mark.parametrize("die", ["after_stage", "after_commit"])
def test_a_crash_before_a_change_of_the_spec_mixes_no_versions(tmp_path: Path, die: str) -> None:
    driver = Driver(tmp_path, specs={"Event": SPEC})
    driver.start()
    values = [log({offset: event(offset, event_time=NOW) for offset in range(40)})]
    with pytest.raises(Died):
        driver.carry(values, {0: 40}, die=die)
    again = Driver(tmp_path, specs={"Event": {"where": "id % 2 = 0"}})
    again.start()
    with pytest.raises(Fenced):
        driver.carry([log({offset: event(offset, event_time=NOW) for offset in range(60)})], {0: 60})
    again.carry([*values, log({offset: event(offset, event_time=NOW) for offset in range(40, 50)})], {0: 50})
    report = audited(again.config)
    by_version = {
        entry.facts["specs"]["version"]: sum(r["end"] - r["start"] for r in entry.facts["ranges"])
        for entry in again.table.history()
        if entry.kind == "batch"
    }
    assert by_version == ({2: 50} if die == "after_stage" else {1: 40, 2: 10})
    assert report.total("read") == 50


OTHER = {**EVENT, "name": "Other"}


@pytest.mark.parametrize(
    ("route", "refuses"),
    [
        ({"by": "record", "targets": {"Event": "/lake/e"}}, ""),  # Bare has no table
        ({"by": "record", "targets": {"Event": "/lake/e"}, "unrouted": "Event"}, "event_time: field 'at' is not in"),
        ({"by": {"header": "x"}, "targets": {"a": {"location": "/lake/a", "event_time": {"field": "id"}}}}, ""),
        ({"by": "record", "targets": {"*": {"location": "/lake/a", "event_time": {"field": "id"}}}}, ""),
    ],
)  # fmt: skip
def test_a_start_asks_for_the_event_time_of_the_table_that_records_go_to(
    tmp_path: Path, route: dict[str, Any], refuses: str
) -> None:
    bare = {**EVENT, "name": "Bare", "fields": EVENT["fields"][:1]}
    settings = config(tmp_path, route=route, specs={"Bare": {"where": "id > 0"}}).pipelines["clicks"]
    plan = SchemaPlan(pa.schema([])).extend(1, json.dumps(EVENT)).extend(2, json.dumps(bare))
    if not refuses:
        check_specs("clicks", settings, plan)
        return
    with pytest.raises(ConfigError, match=refuses):
        check_specs("clicks", settings, plan)


def test_one_mistake_in_a_spec_is_one_sentence_for_all_records_and_schemas(tmp_path: Path) -> None:
    specs = {"*": {"derive": {"twice": "idd * 2"}}, "Bare": {"where": "at > 0"}}
    settings = config(tmp_path, specs=specs).pipelines["clicks"]
    bare = {**EVENT, "name": "Bare", "fields": EVENT["fields"][:1]}
    plan = SchemaPlan(pa.schema([]), specs=settings.record_specs)
    for schema_id, schema in enumerate((EVENT, WIDER, OTHER, bare), 1):
        plan = plan.extend(schema_id, json.dumps(schema))
    shared, own = find_spec_problems("clicks", settings, plan)
    assert shared.startswith("pipelines.clicks.specs.*: derive.twice: ")
    assert shared.endswith("did you mean 'id'? (records Event, Other)")
    assert own.startswith("pipelines.clicks.specs.Bare: where: ")
    with pytest.raises(ConfigError) as refusal:
        check_specs("clicks", settings, plan)
    assert str(refusal.value).splitlines() == [shared, own]
    rejections = list(decoder_findings(plan))
    assert {finding.status for finding in rejections} == {"not_checked"}, rejections
    assert " ".join(finding.message for finding in rejections).count("their event spec is wrong") == len(rejections)


def test_a_spec_shapes_the_records_of_one_target_of_a_route(tmp_path: Path) -> None:
    targets = {name: str(tmp_path / name) for name in ("Event", "Other")}
    settings = config(tmp_path, route={"by": "record", "targets": targets}, specs={"Event": SPEC})
    tables, schemas = all_tables("clicks", settings), Schemas({1: EVENT, 2: OTHER}, [1, 2])
    tables.main.create(PROVENANCE, [])
    tables.side(settings.pipelines["clicks"].dead_letters).create(DEAD_LETTERS, [])
    epoch = tables.main.begin({P0: 0}, {"clicks": ["uuid-1"]})
    plan = SchemaPlan(pa.schema([])).extend(1, json.dumps(EVENT)).extend(2, json.dumps(OTHER))
    check_specs("clicks", settings.pipelines["clicks"], plan)
    version = enter_specs(tables.main, epoch, settings.pipelines["clicks"], plan)
    local_pipeline = open_local_pipeline("clicks", settings, schemas, tables=tables)
    other = {offset: value(2, OTHER, {"id": offset, "at": NOW, "note": "x"}) for offset in range(60, 100)}
    records = log({**{offset: event(offset) for offset in range(60)}, **other})
    report = local_pipeline.run(
        lambda _: [Piece(records)], lambda _: local_pipeline.task_plan(NOW, "000001", {"clicks": 1})
    )
    snapshot, report = tables.main.snapshot(), builder.merge_reports([report])
    local_pipeline.grow(tables.main, tables.main)
    batch = builder.batch(
        report, [OffsetRange(P0, 0, 100)], epoch=epoch, settled=tables.settled,
        side=local_pipeline.side_files(report), seen={}, closed=(None, {}),
        facts={"started": NOW.isoformat(), **builder.spec_facts(report, version),
                                  **builder.target_facts(report)},
    )  # fmt: skip
    tables.main.append(batch, snapshot)
    tables.apply_side_files()
    account = audited(settings)
    assert account.filtered["Event"]["where"] == 20
    assert account.total("rows") == 100 - account.total("filtered") - account.total("dead_letters")
    columns = {name: set(tables.side(target).rows().to_table().column_names) for name, target in targets.items()}
    assert {"note", "at", "ratio"} & columns["Event"] == {"ratio"}
    assert {"note", "at", "ratio"} & columns["Other"] == {"note", "at"}
    assert tables.side(targets["Other"]).rows().count_rows() == 40
