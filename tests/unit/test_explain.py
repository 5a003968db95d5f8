"""`headrace explain`: which commit, why, and what it cost."""

import ast
from datetime import UTC, datetime
from io import StringIO
from pathlib import Path

import pyarrow as pa
import pytest
from deltalake import DeltaTable
from rich.console import Console

from headrace.writer.cli.fix.delete_rows import run_deletion
from headrace.writer.cli.look.explain import explain_commit, run_explain
from headrace.writer.config.pipelines import Config
from headrace.writer.core.errors import HeadraceError
from headrace.writer.maintenance.deletion.pipeline_deletion import DeletionRequest
from headrace.writer.maintenance.deletion.row_keys import where
from headrace.writer.output.command_inputs import ChosenPipelines
from headrace.writer.output.entry_text import batch_end_reason, describe_entry
from headrace.writer.output.report import json_value
from headrace.writer.status.commit_explanation import choose_commit
from headrace.writer.table.log.entries import ANY_CLIENT, CREATED, Entry
from headrace.writer.table.log.operations.seals import Closing
from headrace.writer.table.log.snapshot import KINDS
from tests.support.commits import LIMITS, Lake, account
from tests.support.local_driver import Driver, log
from tests.support.sample_records import event

NOON = datetime(2026, 11, 20, 12, tzinfo=UTC)


@pytest.fixture(params=["delta", "parquet"])
def config(tmp_path, request):
    clicks = {
        "topics": ["clicks"],
        "table": {"location": str(tmp_path / "lake"), "format": request.param},
        "event_time": {"field": "at"},
    }
    return Config.model_validate(
        {
            "kafka": {"bootstrap_servers": "127.0.0.1:1"},
            "registry": {"url": "http://127.0.0.1:1"},
            "checkpoints": str(tmp_path / "checkpoints"),
            "pipelines": {"clicks": clicks},
        }
    )


@pytest.fixture
def written(config):
    made = Lake(config.pipelines["clicks"].table.location, config.pipelines["clicks"].table.format)
    made.begin()
    return made


# --- the sentence -----------------------------------------------------------------------------------------------


def why(name, offsets, waiting, **limits):
    return batch_end_reason(
        {"reason": name, "offsets": offsets, "waiting": waiting, "limits": LIMITS | limits, "ranges": [account(0, 9)]}
    )


def test_enough_waited():
    said = why("size", 262_144, 262_144, offsets_min=250_000)
    assert said == "enough waited: 262,144 offsets waited, 250,000 (commit.min_offsets) were enough"


def test_enough_for_one_file():
    said = why("size", 300, 300, offsets_min_from="roll.target_file_size")
    assert said == "enough waited: 300 offsets waited, 100 (one file of roll.target_file_size) were enough"


def test_a_full_batch_says_what_it_left():
    assert why("backlog", 5_000, 12_000) == (
        "it was full: 12,000 offsets waited, one commit takes 5,000 (commit.max_offsets); 7,000 were left for the next"
    )
    assert why("backlog", 5_000, None) == (
        "it was full: 5,000 offsets waited, one commit takes 5,000 (commit.max_offsets)"
    )


def test_the_delay_was_over():
    assert why("timeout", 7, 7) == (
        "the delay was over: 10 min (commit.max_delay) had passed; 7 offsets waited, 100 (commit.min_offsets) would "
        "have ended it sooner"
    )


def test_the_first_of_its_start_and_once_and_read_again():
    assert why("start", 1, 1) == "it was the first of its start, which does not wait: 1 offset waited"
    once = {"offsets_min": None, "offsets_min_from": "--once", "delay_max_seconds": None}
    assert why("once", 70, 70, **once) == "--once takes what is there: 70 offsets waited"
    assert why("once", 5_000, 6_000, **once) == (
        "--once takes what is there: 6,000 offsets waited, one commit takes 5,000 (commit.max_offsets); 1,000 were "
        "left for the next"
    )
    assert why("replay", 70, 90) == "an earlier start had planned it and ended before its commit: 70 offsets"


def test_a_commit_of_another_version_is_not_guessed_at():
    assert why("moon", 1, 1) == "its commit says 'moon', which this version of headrace does not know"


# --- which commit -----------------------------------------------------------------------------------------------


def entry(version, kind="batch", **about):
    return Entry(version, NOON, kind, {"kind": kind, **about})


LOG = [
    entry(9, batch=1, run=2, former={"version": 7, "phases": {"commit": 0.5, "redo": 0.1}}),
    entry(8, "start"),
    entry(7, batch=0, run=2, phases={"tasks": 3.0}),
    entry(6, batch=1, run=1),
    entry(5, batch=0, run=1, phases={"tasks": 4.0}),
]


@pytest.mark.parametrize(
    ("batch", "version", "expected"), [(None, None, 9), (0, None, 7), (1, None, 9), (None, 6, 6), (1, 6, 6)]
)
def test_a_commit_is_chosen_by_version_by_its_newest_batch_or_the_last(batch, version, expected):
    assert choose_commit(LOG, batch=batch, version=version).entry.version == expected


def test_a_gap_is_explained_where_it_is_the_last_or_asked_for():
    gap = entry(
        10, "gap", id="ticket-1", cause="retention", run=2, at="2026-11-20T12:00:00+00:00",
        ranges=[{"topic": "clicks", "incarnation": 2, "partition": 0, "start": 5, "end": 1_205}],
    )  # fmt: skip
    for version in (None, 10):
        assert choose_commit([gap, *LOG], batch=None, version=version).entry is gap
    assert choose_commit([gap, *LOG], batch=1, version=None).entry.version == 9
    found = json_value(explain_commit(choose_commit([gap, *LOG], batch=None, version=None)))
    assert (found["kind"], found["id"], found["offsets"], found["run"]) == ("gap", "ticket-1", 1_200, 2)
    assert "retention" in found["why"]


def test_any_other_entry_is_explained_by_its_version():
    fill = entry(10, "fill", id="f1", gap="3f2a9c4100", offsets=500, left=0, done=True)
    assert choose_commit([fill, *LOG], batch=None, version=None).entry.version == 9, "the last commit is no fill"
    found = json_value(explain_commit(choose_commit([fill, *LOG], batch=None, version=10)))
    assert (found["kind"], found["why"]) == ("fill", "a backfill settled 500 offsets of gap 3f2a9c41, 0 offsets left")
    assert json_value(explain_commit(choose_commit(LOG, batch=None, version=8)))["kind"] == "start"
    assert choose_commit([fill, *LOG], batch=None, version=7).phases == {"tasks": 3.0, "commit": 0.5, "redo": 0.1}


def written_kinds() -> set[str]:
    """Every `kind` that a module of the table puts into an entry."""
    found = set()
    for path in (Path(__file__).parents[2] / "writer" / "table").rglob("*.py"):
        text = path.read_text(encoding="utf-8")
        for node in ast.walk(ast.parse(text)) if "kind" in text else ():
            match node:
                case ast.AnnAssign(target=ast.Name("kind"), value=ast.Constant(kind)):
                    found.add(kind)
            for key, value in zip(node.keys, node.values, strict=True) if isinstance(node, ast.Dict) else ():
                if isinstance(key, ast.Constant) and key.value == "kind" and isinstance(value, ast.Constant):
                    found.add(value.value)
    return found


FACTS = {
    "gap": "3f2a9c4100", "offsets": 500, "left": 0, "moves": [{"rows": 2}, {"rows": -1}], "changes": {"os": "string"},
    "added": [{"location": "/lake/a"}], "location": "/lake/a_raw", "specs": {"shop.Click": {"where": "n > 1"}},
    "specs_version": 2, "superseded_by": "/lake/clicks_v2",
    "policies": {"tags": {"PII": "hash"}}, "keys": {"hash": {"id": "h1", "fingerprint": "0"}},
    "privacy_version": 1, "versions": {"Europe/Berlin": "2026a"},
    "answers": [{"operation": "DELETE", "version": 4}], "main_version": 7, "operation": "DELETE",
    "buckets": [[["2026-11-20T05"], 3, 2]],
}  # fmt: skip


def test_every_kind_of_entry_is_explained():
    assert written_kinds() == set(KINDS)
    said = {kind: describe_entry(kind, FACTS) for kind in (*KINDS, CREATED, ANY_CLIENT) if kind not in ("batch", "gap")}
    assert [kind for kind, text in said.items() if "does not know" in text] == []
    assert len(set(said.values())) == len(said), "each in its own words"
    assert "does not know" in describe_entry("newer", FACTS)
    assert describe_entry("replay", {"moves": []}).startswith("dead letters were deleted")
    another_key = {"keys": FACTS["keys"], "privacy_version": 2}
    assert (
        describe_entry("privacy", another_key)
        == "the hash key became h1: hashes of later rows equal none of those before"
    )
    assert describe_entry("rewrite", {"taken": {"why": "delete", "rows": 3}}) == "3 rows were taken out by delete"


def test_every_version_of_a_table_is_explained(tmp_path):
    driver = Driver(tmp_path)
    driver.start()
    driver.carry([log({n: event(n) for n in range(10)} | {3: None, 5: event(5)[:-1]})], {0: 10})
    driver.table.grow([pa.field("more", pa.string())])
    run_deletion(
        driver.config,
        DeletionRequest("clicks", where("id = 4"), NOON, with_dead_letters=False),
        driver.schemas,
        write=True,
    )
    driver.table.append(Closing("c", NOON, {"reason": "command"}), driver.table.snapshot())
    DeltaTable(driver.lake).delete("id = 6")
    newest = driver.table.snapshot().version
    found = [
        page(driver.config, version=version).split("clicks  ", 1)[1].split(",")[0].split(" ")[0]
        for version in range(newest + 1)
    ]
    assert found == ["create", "start", "batch", "columns", "rewrite", "close", "client"]
    assert "\n1 row was taken out by delete.\n" in page(driver.config, version=4)
    assert "\nAnother client ran DELETE; `headrace audit` says" in page(driver.config, version=6)
    with pytest.raises(HeadraceError, match="with version 99; it has versions 0 to 6"):
        page(driver.config, version=99)


@pytest.mark.parametrize(("batch", "version"), [(7, None), (None, 4), (0, 6)])
def test_a_missing_batch_or_version_is_not_chosen(batch, version):
    assert choose_commit(LOG, batch=batch, version=version) is None


def test_the_next_commit_of_the_same_driver_tells_what_this_one_cost():
    assert choose_commit(LOG, batch=None, version=7).phases == {"tasks": 3.0, "commit": 0.5, "redo": 0.1}
    assert choose_commit(LOG, batch=None, version=5).phases == {"tasks": 4.0}


# --- the page ---------------------------------------------------------------------------------------------------


def page(config, **wanted) -> str:
    out = StringIO()
    console = Console(file=out, width=100, highlight=False)
    run_explain(ChosenPipelines(["clicks"], config), **wanted).render(console)
    return out.getvalue()


def json_of(config, *names):
    return run_explain(ChosenPipelines(list(names), config)).document()["pipelines"]


def test_the_page_tells_why_what_and_at_what_cost(config, written):
    ranges = [account(0, 1_000, read=998, rows=990, dead_letters=7, quarantined=1)]
    version = written.commit(
        0, 1_000, batch=4, run=3, ranges=ranges, rows=990, files=3, bytes=49_500, tasks=2, value_bytes=199_600,
        seconds={"columnar": 0.1, "decode": 0.3, "skip": 0.1}, phases={"wait": 12.0, "look": 0.02, "tasks": 3.5},
        dead_letter_files=1, dead_letter_bytes=2_048, event_time_min="2026-11-20T10:00:00+00:00",
    )  # fmt: skip
    text = page(config)
    assert text.startswith(f"clicks  batch 4 of run 3, committed as version {version} at ")
    assert "Its batch ended because enough waited: 1,000 offsets waited, 100 (commit.min_offsets) were enough." in text
    rows = [" ".join(row.split()) for row in text.splitlines()]
    for row in (
        "rows 990 99.2%", "dead letters 7 0.7%", "read 998", "offsets without a record 2",
        "skip 0.100 20.0% 100.20", "decode 0.300 60.0% 300.60", "all, in 2 tasks 0.500 501.00",
        "wait 12.000 between the batch before and this one",
        "commit - the table's commit; known with this start's next commit",
        "read 194.9 KiB of values, 200.0 bytes/record", "written 3 files, 48.3 KiB, 50.0 bytes/row, 1 bucket",
        "dead letters 1 file, 2.0 KiB", "event times from 2026-11-20 10:00:00 UTC to 2026-11-20 11:00:00 UTC",
    ):  # fmt: skip
        assert row in rows, row
    order = [row.split()[0] for row in rows if row.split() and row.split()[0] in ("skip", "decode", "columnar")]
    assert order == ["skip", "decode", "columnar"]


def test_json_is_one_document_by_pipeline(config, written):
    written.commit(0, 100, phases={"tasks": 1.0})
    later = written.commit(100, 300, reason="timeout", offsets=200, waiting=200)
    found = json_of(config, "clicks")["clicks"]
    assert (found["version"], found["reason"], found["records"]["rows"]) == (later, "timeout", 200)
    assert found["why"].startswith("the delay was over")


def test_an_old_commit_is_found_however_long_the_log(config, written):
    first = written.commit(0, 10, batch=0, run=1)
    for i in range(1, 4):
        written.commit(10 * i, 10 * i + 10, batch=i, run=1)
    for _ in range(55):
        written.begin()
    assert "batch 3 of run 1" in page(config)
    assert f"batch 0 of run 1, committed as version {first}" in page(config, version=first)


def test_without_a_table_or_a_commit_it_says_what_to_do(config):
    with pytest.raises(HeadraceError, match=r"no table at .* yet\. `headrace run` makes it"):
        page(config)
    Lake(config.pipelines["clicks"].table.location, config.pipelines["clicks"].table.format).begin()
    with pytest.raises(HeadraceError, match="no commit with records yet"):
        page(config)


def test_a_pipeline_without_a_commit_does_not_hide_the_others(config, written):
    written.commit(0, 100)
    other = config.pipelines["clicks"].model_copy(
        update={"table": config.pipelines["clicks"].table.model_copy(update={"location": "/nowhere"})}
    )
    both = config.model_copy(update={"pipelines": {"other": other, **config.pipelines}})
    report = run_explain(ChosenPipelines(["other", "clicks"], both))
    assert "pipeline 'other' has no table at /nowhere yet" in str(report.failure)
    assert list(report.document()["pipelines"]) == ["clicks"]


def test_a_share_below_all_is_not_rounded_to_all(config, written):
    ranges = [account(0, 10_000, read=10_000, rows=9_996, dead_letters=4)]
    written.commit(0, 10_000, ranges=ranges, rows=9_996)
    rows = [" ".join(row.split()) for row in page(config).splitlines()]
    assert {"rows 9,996 99.9600%", "dead letters 4 0.0400%"} <= set(rows)


def test_json_writes_every_instant_alike(config, written):
    written.commit(0, 10, event_time_min="2026-11-20T10:00:00.123456+00:00")
    assert json_of(config, "clicks")["clicks"]["event_time_min"] == "2026-11-20T10:00:00.123Z"


def test_a_commit_that_is_not_there_is_said_with_what_is(config, written):
    first = written.commit(0, 10, batch=0, run=1)
    last = written.commit(10, 20, batch=1, run=1)
    with pytest.raises(HeadraceError) as missing:
        page(config, batch=77)
    assert f"with batch 77; it has versions {first} to {last}, the last is batch 1 of run 1" in str(missing.value)
