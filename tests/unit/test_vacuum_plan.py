"""What nobody needs any more."""

from datetime import UTC, datetime, timedelta

import pytest
from hypothesis import given, strategies as st

from headrace.writer.maintenance.vacuum_plan import NeededFiles, Stored, unneeded_checkpoints, unneeded_in_table

NOON = datetime(2026, 11, 20, 12, tzinfo=UTC)
OLD, YOUNG = NOON - timedelta(days=30), NOON - timedelta(days=1)
CUTOFF = NOON - timedelta(days=7)
NOTHING = NeededFiles(frozenset(), {})


def judged(path: str, needed: NeededFiles = NOTHING, *, touched: datetime = OLD, hidden: bool = False) -> str | None:
    (why,) = [w.why for w in unneeded_in_table([Stored(path, 1, touched)], needed, CUTOFF, hidden=hidden)] or [None]
    return why


@pytest.mark.parametrize(
    ("path", "why"),
    [
        ("hour=x/000001-ab.parquet", "orphan"), ("0101/hour=x/000001-ab.parquet", "orphan"),
        ("_delta_log/00000000000000000001.json", None), ("_delta_log/00000000000000000010.checkpoint.parquet", None),
        ("_delta_log/_last_checkpoint", None), ("_delta_log/.00000000000000000001.json.5f.tmp", "draft"),
        ("_delta_log/_commit_5f.json.tmp", "draft"), ("_headrace/ledger/id/00000000000000000000.json", None),
        ("_headrace/ledger/id/.00000000000000000000.json.5f.tmp", "draft"), ("_headrace/log/1.json", None),
        ("_headrace/published.json", None), ("hour=x/_SUCCESS", None), ("hour=x/notes.txt", None),
        ("_change_data/part.parquet", None), ("_headrace/anything.parquet", None), (".hidden/a.parquet", None),
        ("_headrace/staged/000001-ab.parquet.staged", "orphan"), ("_headrace/sealed/hour=x/v1.json", None),
    ],
)  # fmt: skip
def test_only_what_is_known_to_be_waste_is(path: str, why: str | None) -> None:
    assert judged(path) == why
    assert judged(path, touched=YOUNG) is None
    assert judged(path, touched=CUTOFF) is None


def test_a_file_that_a_version_names_stays() -> None:
    assert judged("hour=x/a.parquet", NeededFiles(frozenset({"hour=x/a.parquet"}), {})) is None
    staged = "_headrace/staged/a.parquet.staged"
    assert judged(staged, NeededFiles(frozenset({staged}), {}), hidden=True) is None


def test_a_removed_file_stays_as_long_as_older_versions_are_kept() -> None:
    path = "hour=x/a.parquet"
    assert judged(path, NeededFiles(frozenset(), {path: OLD})) == "removed"
    assert judged(path, NeededFiles(frozenset(), {path: YOUNG})) is None
    assert judged(path, NeededFiles(frozenset(), {path: CUTOFF})) is None


def test_a_file_that_readers_of_folders_see_is_left_to_its_owner() -> None:
    assert judged("hour=x/a.parquet", hidden=True) is None
    assert judged("_headrace/staged/a.parquet.staged", hidden=True) == "orphan"


def test_of_manifests_the_newest_of_each_bucket_stays() -> None:
    paths = [f"_headrace/sealed/hour={hour}/v{n}.json" for hour in "xy" for n in (1, 2, 10)]
    found = unneeded_in_table([Stored(path, 1, OLD) for path in paths], NOTHING, CUTOFF, hidden=False)
    assert {(waste.path, waste.why) for waste in found} == {(p, "manifest") for p in paths if "v10" not in p}


def test_the_newest_runs_stay_and_a_run_that_is_written_to() -> None:
    stored = [Stored(f"{run:06}/offsets/{n}", 2, OLD) for run in range(1, 7) for n in range(3)]
    stored += [Stored("000002/commits/9", 2, YOUNG), Stored("driver.json", 1, OLD)]
    found = list(unneeded_checkpoints(stored, CUTOFF))
    assert [(waste.path, waste.bytes, waste.why) for waste in found] == [
        ("000001", 6, "checkpoint"), ("000003", 6, "checkpoint"),
    ]  # fmt: skip


PATHS = st.sampled_from([
    "hour=x/a.parquet", "hour=x/b.parquet", "_headrace/staged/a.parquet.staged", "_headrace/ledger/i/0.json",
    "_headrace/sealed/hour=x/v1.json", "_headrace/sealed/hour=x/v2.json", "_delta_log/0.json", ".x.tmp",
])  # fmt: skip


@given(
    st.lists(st.tuples(PATHS, st.integers(0, 20)), unique_by=lambda s: s[0]), st.frozensets(PATHS),
    st.dictionaries(PATHS, st.integers(0, 20)), st.booleans(),
)  # fmt: skip
def test_files_that_are_young_or_needed_and_log_and_ledger_are_no_waste(stored, files, removed, hidden) -> None:
    days = {path: NOON - timedelta(days=age) for path, age in removed.items()}
    objects = [Stored(path, 1, NOON - timedelta(days=age)) for path, age in stored]
    for waste in unneeded_in_table(objects, NeededFiles(files, days), CUTOFF, hidden=hidden):
        assert waste.touched < CUTOFF
        assert waste.path not in files or waste.path.endswith((".tmp", "v1.json"))
        assert not waste.path.startswith(("_delta_log/0", "_headrace/ledger"))
        if waste.path.startswith("hour="):
            assert days.get(waste.path, OLD) < CUTOFF
