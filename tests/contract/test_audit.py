"""The audit proves an account from the lake alone, and finds what is wrong with it."""

import json
import shutil
from contextlib import nullcontext
from datetime import timedelta
from pathlib import Path

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
import pytest
from deltalake import DeltaTable
from typer.testing import CliRunner

from headrace.writer.cli.main import app
from headrace.writer.core.offsets import OffsetRange, TopicPartition
from headrace.writer.maintenance.dead_letters.replay import DeadLetterReplay
from headrace.writer.maintenance.dead_letters.selection import Selection
from headrace.writer.table.ledger.segment_store import FOLDER
from headrace.writer.table.log.commits.starts import Adoption
from headrace.writer.table.log.operations.gaps import Gap
from headrace.writer.table.log.operations.seals import Closing
from tests.support.audits import OLD, P0, describe_problems, driver, form, mixed_values, run_audit
from tests.support.local_driver import Died, Driver, log
from tests.support.sample_records import GAP_FACTS, NOW, event

__all__ = ["driver", "form"]
FORMATS = pytest.mark.parametrize("form", ["delta", "parquet", "iceberg"])


@FORMATS
@pytest.mark.parametrize("deep", [False, True])
def test_an_audit_of_carried_batches_adds_up(driver, deep):
    driver.carry([log(mixed_values(0, 40)), log(mixed_values(0, 10), 1)], {0: 40, 1: 10})
    driver.carry([log(mixed_values(0, 60))], {0: 60, 1: 10})
    report = run_audit(driver, deep=deep)
    assert report.adds_up, describe_problems(report)
    first, two = report.reconciliation.lines
    each = {"rows": 7, "late": 0, "tombstones": 1, "dead_letters": 1, "quarantined": 1, "filtered": 0}
    assert first.outcomes == {"read": 60, **{name: 6 * count for name, count in each.items()}}
    assert two.outcomes == {"read": 10, **each}
    if deep:
        there = report.file_offsets[first.part]
        assert (there.rows, there.dead_letters, there.distinct, there.nowhere_offsets) == (
            42, {"dead_letter": 6, "quarantined": 6}, 54, 6,
        )  # fmt: skip


@pytest.mark.parametrize("die", ["", "after_commit"], ids=["applied", "waiting for redo"])
@pytest.mark.parametrize("policy", ["reopen", "late_table", "dead_letter"])
@FORMATS
def test_late_rows_add_up_wherever_they_go(tmp_path, form, policy, die):
    driver = Driver(tmp_path, form, seal={"late": policy})
    driver.start(1)
    driver.carry([log(mixed_values(0, 20))], {0: 20})
    driver.table.append(Closing("c", NOW + timedelta(days=1), {"reason": "command"}), driver.table.snapshot())
    with pytest.raises(Died) if die else nullcontext():
        driver.carry([log(mixed_values(20, 40))], {0: 40}, die=die)
    report = run_audit(driver)
    assert report.adds_up, describe_problems(report)
    (line,) = report.reconciliation.lines
    late = {"rows": 28, "late": 0, "dead_letters": 4}
    moved = {"reopen": late, "late_table": {**late, "rows": 14, "late": 14}}.get(
        policy, {**late, "rows": 14, "dead_letters": 18}
    )
    assert line.outcomes == {"read": 40, "tombstones": 4, "quarantined": 4, "filtered": 0, **moved}
    assert (report.file_offsets[line.part].distinct, bool(report.waiting)) == (36, bool(die))


@pytest.mark.parametrize("form", ["delta", "parquet"])
@pytest.mark.parametrize("section", ["table", "seal"])
def test_a_side_table_that_a_setting_left_behind_is_named_and_moving_it_adds_up(tmp_path, form, section):
    driver = Driver(tmp_path, form, seal={"late": "late_table"})
    driver.start(1)
    driver.carry([log(mixed_values(0, 20))], {0: 20})
    driver.table.append(Closing("c", NOW + timedelta(days=1), {"reason": "command"}), driver.table.snapshot())
    driver.carry([log(mixed_values(20, 40))], {0: 40})
    location = str(tmp_path / "elsewhere")
    settings = {"table": {"dead_letters": location}} if section == "table" else {"seal": {"late_table": location}}
    setting = f"{section}.{next(iter(settings[section]))}"
    before = driver.settings.dead_letters if section == "table" else driver.settings.late_table
    settings["seal"] = {"late": "late_table", **settings.get("seal", {})}
    changed = Driver(tmp_path, form, **settings)
    report = run_audit(changed)
    assert not report.adds_up
    assert f"They belong to {location}. If {setting}, or its default, named another location" in describe_problems(
        report
    )
    shutil.rmtree(location)
    shutil.copytree(before, location)
    report = run_audit(Driver(tmp_path, form, **settings))
    assert report.adds_up, describe_problems(report)


def test_a_table_without_commits_adds_up(driver):
    assert run_audit(driver).adds_up


def test_missing_offsets_that_the_log_has_are_no_loss(driver):
    driver.carry([log({offset: event(offset) for offset in (0, 1, 4, 9)})], {0: 12})
    report = run_audit(driver)
    assert report.adds_up, describe_problems(report)
    assert report.reconciliation.lines[0].without_records == 8


def edit(driver: Driver, version: int, change) -> None:
    """Change what an entry of ours says of itself."""
    path = Path(driver.lake, "_delta_log", f"{version:020}.json")
    actions = [json.loads(line) for line in path.read_text().splitlines()]
    about = json.loads(actions[0]["commitInfo"]["headrace"])
    change(about, actions)
    actions[0]["commitInfo"]["headrace"] = json.dumps(about)
    path.write_text("".join(json.dumps(action) + "\n" for action in actions))


def test_a_range_that_no_commit_holds_is_named(driver):
    driver.carry([log(mixed_values(0, 20))], {0: 20})
    last = driver.carry([log(mixed_values(0, 40))], {0: 40})
    edit(driver, last, lambda about, _: about["ranges"][0].update(start=24))
    report = run_audit(driver, deep=False)
    assert "no commit up to version" in describe_problems(report)
    assert ((20, 24),) in [p.spans for p in report.problems]


def test_a_range_that_two_commits_hold_is_named(driver):
    driver.carry([log(mixed_values(0, 20))], {0: 20})
    last = driver.carry([log(mixed_values(0, 40))], {0: 40})
    edit(driver, last, lambda about, _: about["ranges"][0].update(start=15, read=25))
    report = run_audit(driver, deep=False)
    assert ((15, 20),) in [p.spans for p in report.problems if "that are committed" in p.description]


def test_a_record_without_an_outcome_is_found(driver):
    last = driver.carry([log(mixed_values(0, 20))], {0: 20})
    edit(driver, last, lambda about, _: about["ranges"][0].update(rows=13))
    report = run_audit(driver, deep=False)
    assert "version 2 holds 20 offsets, but says" in describe_problems(report).replace(f"version {last}", "version 2")
    assert "the files hold 14 rows, the account has 13" in describe_problems(report)


def test_missing_offsets_without_a_reason_are_an_alarm(driver):
    last = driver.carry([log({offset: event(offset) for offset in (0, 3)})], {0: 4})
    edit(driver, last, lambda about, _: about["ranges"][0].pop("without_records"))
    assert "2 offsets gave no record" in describe_problems(run_audit(driver, deep=False))


def test_a_moved_frontier_is_found(driver):
    last = driver.carry([log(mixed_values(0, 20))], {0: 20})

    def move(_about, actions):
        next(a for a in actions if a.get("txn", {}).get("appId") == "clicks/clicks@1/0")["txn"]["version"] = 25

    edit(driver, last, move)
    report = run_audit(driver, deep=False)
    assert "the frontier is 25, the commits end at 20" in describe_problems(report)


def rewritten(driver: Driver, change) -> None:
    """Put other rows in the place of a file's, under the same name."""
    path = Path(driver.lake, driver.table.bucket_files(driver.table.snapshot())[0].path)
    pq.write_table(change(pq.ParquetFile(path).read()), path)


@FORMATS
def test_deep_a_row_that_is_gone_is_named(driver):
    driver.carry([log({offset: event(0) for offset in range(20)})], {0: 20})
    rewritten(driver, lambda rows: rows.slice(2))
    assert run_audit(driver, deep=False).adds_up, "the log alone cannot see it"
    report = run_audit(driver)
    assert describe_problems(report) == f"2 rows are not there; 2 offsets are in neither table {P0} ((0, 2),)"


@FORMATS
def test_deep_a_row_that_is_there_twice_is_named(driver):
    driver.carry([log({offset: event(0) for offset in range(20)})], {0: 20})
    rewritten(driver, lambda rows: pa.concat_tables([rows.slice(1), rows.slice(7, 1)]))
    report = run_audit(driver)
    assert "offsets are there more than once" in describe_problems(report)
    assert ((7, 8),) in [p.spans for p in report.problems]


@FORMATS
def test_deep_rows_beyond_the_frontier_are_named(driver):
    driver.carry([log({offset: event(0) for offset in range(20)})], {0: 20})
    rewritten(driver, lambda rows: rows.set_column(
        rows.schema.get_field_index("_offset"), "_offset", pc.add(rows["_offset"], 5)
    ))  # fmt: skip
    report = run_audit(driver)
    assert ((20, 25),) in [p.spans for p in report.problems if "no commit accounts for" in p.description]


def test_a_file_that_is_gone_is_a_sentence(driver):
    driver.carry([log(mixed_values(0, 20))], {0: 20})
    for path in Path(driver.lake).rglob("*.parquet"):
        path.unlink()
    result = CliRunner().invoke(app, ["audit", str(config_file(driver)), "--deep"])
    assert "a file that the table names is gone" in str(result.exception)


@pytest.mark.parametrize("deep", [False, True])
def test_dead_letters_whose_side_files_are_not_applied_are_counted(driver, deep):
    driver.carry([log(mixed_values(0, 20))], {0: 20})
    with pytest.raises(Died):
        driver.carry([log(mixed_values(0, 40))], {0: 40}, die="after_commit")
    report = run_audit(driver, deep=deep)
    assert (report.adds_up, report.waiting) == (True, 1), describe_problems(report)
    driver.start()
    report = run_audit(driver, deep=deep)
    assert (report.adds_up, report.waiting) == (True, 0), describe_problems(report)


def test_a_recorded_gap_and_an_adopted_topic_keep_the_chain(driver):
    driver.carry([log(mixed_values(0, 20))], {0: 20})
    driver.table.append(
        Gap("g-1", driver.epoch, [OffsetRange(P0, 20, 35)], "retention", GAP_FACTS), driver.table.snapshot()
    )
    moved = Adoption(
        {"clicks": ["uuid-1"], "taps": ["uuid-2"]}, {TopicPartition("taps", 1, 0): 100}, facts={"at": NOW.isoformat()}
    )
    driver.table.adopt(driver.table.snapshot(), moved)
    driver.start(2)
    driver.carry([log(mixed_values(35, 50))], {0: 50})
    report = run_audit(driver)
    assert report.adds_up, describe_problems(report)
    assert [(line.part.topic, *line.range.span, line.gap) for line in report.reconciliation.lines] == [
        ("clicks", 0, 50, 15), ("clicks", 0, 0, 0), ("taps", 100, 100, 0),
    ]  # fmt: skip
    assert report.file_offsets[P0].nowhere_offsets == 3, "the tombstones"


def config_file(driver: Driver) -> Path:
    path = Path(driver.lake).parent / "headrace.yaml"
    path.write_text(json.dumps(driver.config.model_dump(mode="json", exclude_defaults=True) | {
        "pipelines": {"clicks": {
            "topics": ["clicks"], "table": {"location": driver.lake}, "event_time": {"field": "at", "max_age": "30 d"},
        }},
    }))  # fmt: skip
    return path


def test_the_ledger_outlives_the_log(tmp_path):
    driver = Driver(tmp_path, interval=4)
    driver.start()
    for end in range(10, 130, 10):
        driver.carry([log(mixed_values(0, end))], {0: end})
    before = run_audit(driver)
    assert before.adds_up, describe_problems(before)
    log_files = sorted(Path(driver.lake, "_delta_log").glob("*.json"))
    newest = DeltaTable(driver.lake).version()
    checkpointed = int(json.loads(Path(driver.lake, "_delta_log", "_last_checkpoint").read_text())["version"])
    for path in log_files:
        if int(path.stem) < checkpointed:
            path.unlink()
    fresh = Driver(tmp_path, interval=4)
    after = run_audit(fresh)
    assert after.reconciliation == before.reconciliation
    assert after.adds_up, describe_problems(after)
    pages = sorted(Path(driver.lake, FOLDER).rglob("*.json"))
    assert len(pages) >= 3
    pages[1].unlink()
    corrupt = run_audit(fresh)
    assert "are neither in the log nor in the ledger" in describe_problems(corrupt)
    assert newest == after.reconciliation.last


def test_on_s3_ledger_audit_and_replay_are_the_same(tmp_path, on_s3):
    location = f"{on_s3.bucket()}/lake/clicks"
    driver = Driver(tmp_path, interval=3, table={"location": location})
    driver.start()
    for end in range(10, 60, 10):
        driver.carry([log(mixed_values(0, end))], {0: end})
    pages = [key for key in on_s3.keys(location) if key.startswith(FOLDER)]
    assert pages
    report = run_audit(driver)
    assert report.adds_up, describe_problems(report)
    done = DeadLetterReplay("clicks", driver.config, driver.schemas).run(Selection(outcome="quarantined"), OLD)
    assert (done.chosen, done.rows) == (5, 5)
    report = run_audit(driver)
    assert report.adds_up, describe_problems(report)
    assert (report.reconciliation.total("rows"), report.reconciliation.total("quarantined")) == (40, 0)


def test_vacuum_leaves_the_ledger_and_readers_do_not_see_it(tmp_path):
    driver = Driver(tmp_path, interval=2)
    driver.start()
    for end in range(10, 60, 10):
        driver.carry([log(mixed_values(0, end))], {0: end})
    pages = sorted(Path(driver.lake, FOLDER).rglob("*.json"))
    assert pages
    table = DeltaTable(driver.lake)
    for full in (False, True):
        table.vacuum(0, dry_run=False, enforce_retention_duration=False, full=full)
    assert sorted(Path(driver.lake, FOLDER).rglob("*.json")) == pages
    assert run_audit(driver).adds_up


def test_since_looks_at_what_came_after(driver):
    driver.carry([log(mixed_values(0, 20))], {0: 20})
    broken = driver.carry([log(mixed_values(0, 40))], {0: 40})
    later = driver.carry([log(mixed_values(0, 60))], {0: 60})
    edit(driver, broken, lambda about, _: about["ranges"][0].update(rows=0))
    assert not run_audit(driver).adds_up
    report = run_audit(driver, since=later)
    assert report.adds_up, describe_problems(report)
    assert [line.range.span for line in report.reconciliation.lines] == [(40, 60)]
    assert report.file_offsets[P0].distinct == 18


def test_a_file_without_a_row_count_is_said(driver, monkeypatch):
    monkeypatch.setenv("COLUMNS", "200")
    last = driver.carry([log(mixed_values(0, 40))], {0: 40})
    assert run_audit(driver).uncounted == 0
    edit(driver, last, lambda _, actions: [action["add"].pop("stats") for action in actions if "add" in action])
    report = run_audit(driver)
    assert report.adds_up, describe_problems(report)
    assert report.uncounted > 0
    shown = CliRunner().invoke(app, ["audit", str(config_file(driver))]).output
    assert f"the logs have no row count of {report.uncounted} file" in shown


def test_the_verb_exits_1_and_names_the_ranges(driver, monkeypatch):
    monkeypatch.setenv("COLUMNS", "100")
    last = driver.carry([log(mixed_values(0, 40))], {0: 40})
    good = CliRunner().invoke(app, ["audit", str(config_file(driver)), "--deep"])
    assert good.exit_code == 0, good.output
    assert "40 read = 28 rows + 4 tombstones + 4 dead letters + 4 quarantined. It adds up." in good.output
    edit(driver, last, lambda about, _: about["ranges"][0].update(start=2, read=38))
    bad = CliRunner().invoke(app, ["audit", str(config_file(driver)), "--json"])
    assert bad.exit_code == 1
    pipeline_document = json.loads(bad.output)["pipelines"]["clicks"]
    assert pipeline_document["adds_up"] is False
    assert [0, 2] in [span for problem in pipeline_document["problems"] for span in problem["ranges"]]
