"""What a schema's tags said outlives the schema: each start and command goes on by it, and a person releases paths."""

import json
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from headrace.recovery.backfill import source_factory
from headrace.recovery.backfill.fill_gaps import BackfillRequest, fill_gaps
from headrace.writer.cli.main import app
from headrace.writer.cli.maintain.convert import run_convert
from headrace.writer.commit.privacy import record_privacy
from headrace.writer.core.errors import ConfigError
from headrace.writer.maintenance.dead_letters.replay import DeadLetterReplay
from headrace.writer.maintenance.dead_letters.selection import Selection
from headrace.writer.maintenance.local_pipeline import open_local_pipeline
from headrace.writer.maintenance.migration.promotion import Promotion, PromotionRequest
from headrace.writer.maintenance.migration.shadow import shadow_writer_config
from headrace.writer.maintenance.record_commit import RecordTable
from headrace.writer.preflight.checks import source_checks
from headrace.writer.privacy.path_policies import PathPolicy
from headrace.writer.privacy.policy import Action
from headrace.writer.table.log.entries import metadata_actions
from headrace.writer.table.log.foreign_writes import PrivacyChanged
from tests.support import canaries
from tests.support.backfill_gaps import Silent, skip_offsets
from tests.support.killed_process import kill_within
from tests.support.local_driver import Driver, log
from tests.support.private_table import hash_of, start_driver, write_config_file
from tests.support.reprocess_lake import BERLIN, run_reprocess
from tests.support.sample_records import EVENT, NOW, Schemas, value

FORMATS = pytest.mark.parametrize("form", ["delta", "parquet", "iceberg"])
POLICIES = {"tags": {"PII": "hash"}}
SECRET = f"{canaries.STEM}-secret"
PII = {"confluent:tags": ["PII"]}
LENIENT = {"max_failed_ratio": 1}


def schema(words: dict[str, Any], **more: Any) -> dict[str, Any]:
    """Return a schema of events whose note has these words."""
    note = {"name": "note", "type": "string", **words}
    return {**EVENT, "fields": [*EVENT["fields"][:2], note], **more}


TAGGED, BARE = schema(PII), schema({})
NEW = {**BARE, "fields": [*BARE["fields"], {"name": "extra", "type": ["null", "int"], "default": None}]}


def note(number: int, schema_id: int = 2, of: dict[str, Any] = NEW, **more: Any) -> bytes:
    row = {"id": number, "at": NOW, "note": f"{SECRET}{number}", **more}
    return value(schema_id, of, row)


def placed(form: str) -> dict[str, Any]:
    return {"form": form, "table": {"name": "s.clicks"} if form == "iceberg" else {}, "limits": LENIENT}


def taught(root: Path, form: str = "delta", **settings: Any) -> Driver:
    """Return a pipeline whose first schema had a tag, and is gone."""
    given = {**placed(form), **settings}
    driver = start_driver(root, Schemas({1: TAGGED}, [1]), POLICIES, **given)
    driver.carry([log({0: note(0, 1, TAGGED)})], {0: 1})
    return driver


def again(
    root: Path, form: str = "delta", privacy: Any = POLICIES, schemas: Schemas | None = None, **more: Any
) -> Driver:
    """Start it again, by the schema without the tag alone."""
    return start_driver(root, schemas or Schemas({2: NEW}, [2]), privacy, **{**placed(form), **more})


def notes(driver: Driver) -> set[Any]:
    return set(driver.table.rows().to_table(columns=["note"])["note"].to_pylist())


def digests(root: Path, *numbers: int) -> set[str]:
    return {hash_of(root, f"{SECRET}{number}") for number in numbers}


def leaks(root: Path) -> set[canaries.Hit]:
    """Search all files of the lake for canaries, unpacked."""
    return canaries.search(canaries.files(root, ["keys.json"]))


@FORMATS
def test_a_start_goes_on_by_a_tag_whose_schema_is_gone(tmp_path: Path, form: str) -> None:
    taught(tmp_path, form)
    driver = again(tmp_path, form)
    driver.carry([log({1: note(1)})], {0: 2})
    assert notes(driver) == digests(tmp_path, 0, 1)
    assert driver.table.snapshot().protected_paths == {"Event": {("note",): PathPolicy(Action("hash"), "tag PII")}}
    assert leaks(tmp_path) == set()


@FORMATS
def test_a_tag_that_only_a_batch_met_is_in_the_log_before_its_rows(tmp_path: Path, form: str) -> None:
    driver = start_driver(tmp_path, Schemas({1: TAGGED}, []), POLICIES, **placed(form))
    driver.carry([log({0: note(0, 1, TAGGED)})], {0: 1})
    kinds = [entry.kind for entry in driver.table.history()][::-1]
    assert kinds.index("privacy", kinds.index("privacy") + 1) < kinds.index("batch")
    later = again(tmp_path, form)
    later.carry([log({1: note(1)})], {0: 2})
    assert notes(later) == digests(tmp_path, 0, 1)


def _taught_in_a_batch(root: Path, form: str) -> None:
    driver = start_driver(root, Schemas({1: TAGGED}, []), POLICIES, **placed(form))
    driver.carry([log({0: note(0, 1, TAGGED)})], {0: 1})


@FORMATS
@pytest.mark.parametrize("point", ["before_protect:1", "after_protect:1", "before_commit:1", "after_commit:1"])
def test_whenever_the_process_dies_no_row_is_in_the_clear(
    tmp_path: Path, form: str, point: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HEADRACE_FAULT", point)
    kill_within(_taught_in_a_batch, tmp_path, form, moment=point)
    monkeypatch.delenv("HEADRACE_FAULT")
    is_in_log = not point.startswith("before_protect")
    schemas = Schemas({2: NEW} if is_in_log else {1: TAGGED, 2: NEW}, [2])
    driver = again(tmp_path, form, schemas=schemas)
    driver.table.grow(list(driver.row_columns()), driver.epoch)
    driver.carry([log({0: note(0, 1, TAGGED), 1: note(1)})], {0: 2})
    assert digests(tmp_path, 1) <= notes(driver) <= digests(tmp_path, 0, 1)
    assert leaks(tmp_path) == set()


def test_protected_paths_outlive_the_log_entries_that_added_them(tmp_path: Path) -> None:
    driver = taught(tmp_path, interval=2)
    for offset in range(1, 8):
        driver.carry([log({offset: note(offset, 1, TAGGED)})], {0: offset + 1})
    later = again(tmp_path)
    later.carry([log({8: note(8)})], {0: 9})
    assert notes(later) == digests(tmp_path, *range(9))


def test_a_renamed_record_and_a_renamed_field_are_those_of_before(tmp_path: Path) -> None:
    taught(tmp_path)
    record = {**NEW, "name": "Visit", "aliases": ["Event"]}
    driver = again(tmp_path, schemas=Schemas({2: record}, [2]))
    driver.carry([log({1: note(1, 2, record)})], {0: 2})
    fields = [
        {**field, "name": "said", "aliases": ["note"]} if field["name"] == "note" else field for field in NEW["fields"]
    ]
    renamed = {**record, "fields": fields}
    driver = again(tmp_path, schemas=Schemas({3: renamed}, [3]))
    driver.carry([log({2: value(3, renamed, {"id": 2, "at": NOW, "said": f"{SECRET}2"})})], {0: 3})
    plain = {
        **renamed,
        "aliases": [],
        "fields": [{k: v for k, v in field.items() if k != "aliases"} for field in fields],
    }
    driver = again(tmp_path, schemas=Schemas({4: plain}, [4]))
    driver.carry([log({3: value(4, plain, {"id": 3, "at": NOW, "said": f"{SECRET}3"})})], {0: 4})
    assert leaks(tmp_path) == set()


def test_a_replay_goes_on_by_a_tag_whose_schema_is_gone(tmp_path: Path) -> None:
    taught(tmp_path)
    driver = again(tmp_path, schemas=Schemas({}, []))
    driver.carry([log({1: note(1)})], {0: 2})
    assert DeadLetterReplay("clicks", driver.config, Schemas({2: NEW}, [2])).run(Selection(), NOW).rows == 1
    assert notes(driver) == digests(tmp_path, 0, 1)
    assert leaks(tmp_path) == set()


def test_the_writer_protects_the_paths_that_a_replay_found(tmp_path: Path) -> None:
    """It runs on beside the command, and has met no schema with the tag."""
    driver = start_driver(tmp_path, Schemas({2: NEW}, [2]), POLICIES, **placed("delta"))
    driver.carry([log({0: note(0, 1, TAGGED)})], {0: 1})
    assert DeadLetterReplay("clicks", driver.config, Schemas({1: TAGGED}, [])).run(Selection(), NOW).rows == 1
    with pytest.raises(PrivacyChanged, match="they are made anew"):
        driver.carry([log({1: note(1)})], {0: 2})
    snapshot = driver.table.snapshot()
    driver._pipeline.schemas.remember(snapshot.protected_paths, snapshot.privacy)
    driver.carry([log({1: note(1)})], {0: 2})
    assert notes(driver) == digests(tmp_path, 0, 1)


def test_a_command_that_the_writer_overtakes_begins_anew(tmp_path: Path) -> None:
    driver = start_driver(tmp_path, Schemas({2: NEW}, [2]), POLICIES, **placed("delta"))
    replaying = DeadLetterReplay("clicks", driver.config, Schemas({1: TAGGED, 2: NEW}, [2]))
    walk = replaying._record_table.pipeline
    driver.schemas = Schemas({1: TAGGED, 2: NEW}, [2])
    other = open_local_pipeline("clicks", driver.config, Schemas({1: TAGGED}, [1]), tables=driver.tables)
    record_privacy(driver.table, other.schemas, None)
    assert walk.schemas.privacy_version < driver.table.snapshot().privacy
    driver._pipeline.schemas.remember(driver.table.snapshot().protected_paths, driver.table.snapshot().privacy)
    driver.carry([log({0: b"\0\0\0\0\7!", 1: note(1)})], {0: 2})
    assert replaying.run(Selection(), NOW).chosen == 1
    assert notes(driver) == digests(tmp_path, 1)


def test_a_reprocess_goes_on_by_a_tag_whose_schema_is_gone(tmp_path: Path) -> None:
    raw = {"table": {"raw": {"location": str(tmp_path / "raw")}}}
    both = Schemas({1: TAGGED, 2: NEW}, [1, 2])
    driver = start_driver(tmp_path, both, POLICIES, limits=LENIENT, **raw)
    driver.carry([log({0: note(0, 1, TAGGED), 1: note(1)})], {0: 2})
    driver = again(tmp_path, **raw, **BERLIN)
    done = run_reprocess(driver)
    assert sum(bucket.moved for bucket in done.buckets) == 1, "the row of the schema that is still there"
    assert digests(tmp_path, 1) <= notes(driver) <= digests(tmp_path, 0, 1)
    assert leaks(tmp_path) == set()


def test_a_backfill_goes_on_by_a_tag_whose_schema_is_gone(tmp_path: Path) -> None:
    locations = {"location": str(tmp_path / "before"), "raw": str(tmp_path / "raw")}
    before = start_driver(
        tmp_path, Schemas({2: NEW}, [2]), {"tags": {"PII": "hash"}, "fields": {"note": "hash"}}, table=locations
    )
    before.carry([log({offset: note(offset) for offset in range(1, 6)})], {0: 6})
    driver = taught(tmp_path)
    skip_offsets(driver, 6)
    driver = again(tmp_path)
    filling = RecordTable("clicks", driver.config, driver.schemas)
    fill_gaps(filling, lambda _: [source_factory.raw(filling, locations["raw"])], BackfillRequest(by="ann"), Silent())
    assert notes(driver) == digests(tmp_path, *range(6))
    assert leaks(tmp_path) == set()


def test_a_shadow_begins_from_what_the_first_table_has_and_a_promote_keeps_it(tmp_path: Path) -> None:
    driver = taught(tmp_path)
    locations = str(tmp_path / "elsewhere" / "v2")
    config = shadow_writer_config(driver.config, driver.config, "clicks", locations, {"clicks": {0: 0}})
    shadow = Driver(tmp_path, configuration=config, schemas=Schemas({2: NEW}, [2]))
    shadow.start()
    shadow.carry([log({0: note(0), 1: note(1)})], {0: 2})
    assert notes(shadow) == digests(tmp_path, 0, 1)
    later = {**BARE, "name": "Later", "fields": [*BARE["fields"][:2], {"name": "mail", "type": "string", **PII}]}
    first = again(tmp_path, schemas=Schemas({2: NEW, 3: later}, [2, 3]))
    assert "Later" in first.table.snapshot().protected_paths
    asked = PromotionRequest(first.config, first.config, tmp_path, "clicks", locations)
    Promotion(asked).carry_out(first.table.snapshot().parts(), {})
    assert shadow.table.snapshot().protected_paths == first.table.snapshot().protected_paths
    assert leaks(tmp_path) == set()


def test_a_converted_table_keeps_what_is_protected(tmp_path: Path) -> None:
    driver = taught(tmp_path)
    whole = driver.config.model_dump(mode="json", exclude_unset=True)
    table = {**whole["pipelines"]["clicks"]["table"], "format": "iceberg", "name": "s.clicks"}
    whole["pipelines"]["clicks"]["table"] = table
    config = type(driver.config).model_validate(whole)
    run_convert(config, "clicks", write=True, now=NOW)
    later = Driver(tmp_path, configuration=config, schemas=Schemas({2: NEW}, [2]))
    later.start()
    later.carry([log({1: note(1)})], {0: 2})
    assert notes(later) == digests(tmp_path, 0, 1)


def test_a_preview_shows_no_value_of_a_path_that_the_log_has(tmp_path: Path) -> None:
    driver = taught(tmp_path)
    local_pipeline = open_local_pipeline("clicks", driver.config, Schemas({2: NEW}, [2]))
    sample = local_pipeline.decode(log({1: note(1)}))
    (group,) = sample.groups
    assert group.rows["note"].to_pylist() == [hash_of(tmp_path, f"{SECRET}1")]


def test_a_property_that_another_client_took_out_is_missed(tmp_path: Path) -> None:
    """Else the next start would go on as if no schema had ever said anything."""
    driver = taught(tmp_path)
    snapshot = driver.table.snapshot()
    actions = metadata_actions("SET TBLPROPERTIES", {}, snapshot.state.metadata, {}, configuration={})
    driver.table.put(snapshot, actions)
    with pytest.raises(ConfigError, match=r"headrace\.protected_paths of the table .* is not as headrace wrote it"):
        again(tmp_path)


def test_a_path_of_the_configuration_whose_schema_is_gone_is_none_that_no_schema_has(tmp_path: Path) -> None:
    policies = {"fields": {"note": "hash"}}
    start_driver(tmp_path, Schemas({1: BARE}, [1]), policies, limits=LENIENT)
    other = {**EVENT, "name": "Other"}
    fields = [field for field in other["fields"] if field["name"] != "note"]
    again(tmp_path, privacy=policies, schemas=Schemas({2: {**other, "fields": fields}}, [2]))


# --- what a start refuses, and a person releases ----------------------------------------------------------------------

WEAKER: dict[str, Any] = {
    "no section": None,
    "the tag has no policy": {"tags": {"OTHER": "hash"}},
    "the tag is clear": {"tags": {"PII": "clear", "OTHER": "hash"}},
    "the path is clear": {**POLICIES, "fields": {"note": "clear"}},
}


@pytest.mark.parametrize("known", [[2], []])
@pytest.mark.parametrize("weaker", list(WEAKER))
def test_a_start_that_would_unprotect_a_path_is_refused_until_it_is_released(
    tmp_path: Path, weaker: str, known: list[int]
) -> None:
    driver = taught(tmp_path)
    before = driver.table.snapshot()
    schemas = Schemas({2: NEW}, known)
    with pytest.raises(ConfigError, match=r"'note' of record Event .*would be in the clear.*`headrace privacy release"):
        again(tmp_path, privacy=WEAKER[weaker], schemas=schemas)
    assert driver.table.snapshot().version == before.version, "a refused start writes no entry"
    file = write_config_file(driver.config, tmp_path)
    result = CliRunner().invoke(
        app, ["privacy", "release", file, "--record", "Event", "--path", "note", "--reason", "asked", "--yes"]
    )
    assert result.exit_code == 0, (result.output, result.exception)
    later = again(tmp_path, privacy=WEAKER[weaker], schemas=schemas)
    later.carry([log({1: note(1)})], {0: 2})
    assert notes(later) == {*digests(tmp_path, 0), f"{SECRET}1"}


@pytest.mark.parametrize(
    ("policies", "stronger"),
    [
        (POLICIES, {"tags": {"PII": {"mask": 2}}}),
        (POLICIES, {"tags": {"PII": "drop"}}),
        (POLICIES, {"tags": {"OTHER": "hash"}, "fields": {"note": "hash"}}),
        ({"fields": {"note": "hash"}}, {"fields": {"note": {"mask": 1}}}),
    ],
)  # fmt: skip
def test_another_policy_of_a_path_is_a_change_and_no_leak(tmp_path: Path, policies: Any, stronger: Any) -> None:
    schema = TAGGED if "tags" in policies else BARE
    driver = start_driver(tmp_path, Schemas({1: schema}, [1]), policies, limits=LENIENT)
    driver.carry([log({0: note(0, 1, schema)})], {0: 1})
    later = again(tmp_path, privacy=stronger)
    later.carry([log({1: note(1)})], {0: 2})
    assert f"{SECRET}1" not in notes(later)
    assert later.table.rows().count_rows() == 2


def test_a_path_policy_that_is_taken_out_is_refused(tmp_path: Path) -> None:
    both = {"id": "hash", "note": "hash"}
    start_driver(tmp_path, Schemas({1: BARE}, [1]), {"fields": both}, limits=LENIENT)
    with pytest.raises(ConfigError, match=r"'note' of record Event \(hash, by path note\) would be in the clear"):
        again(tmp_path, privacy={"fields": {"id": "hash"}})


def test_columns_of_keys_and_headers_stay_protected(tmp_path: Path) -> None:
    columns = {"columns": {"key": "string"}}
    start_driver(
        tmp_path, Schemas({1: BARE}, [1]), {"fields": {"note": "hash", "_key": "hash"}}, limits=LENIENT, **columns
    )
    clear = {"fields": {"note": "hash", "_key": "clear"}}
    with pytest.raises(
        ConfigError, match=r"'_key' of the columns of keys and headers .* --record columns --path '_key'"
    ):
        again(tmp_path, privacy=clear, **columns)
    again(tmp_path, privacy={"fields": {"note": "hash"}})


def test_attributes_that_no_longer_count_are_refused(tmp_path: Path) -> None:
    known = schema({"pii": "hash"})
    start_driver(tmp_path, Schemas({1: known}, [1]), {"attributes": ["pii"], "tags": {"A": "hash"}}, limits=LENIENT)
    with pytest.raises(ConfigError, match=r"'note' of record Event \(hash, by attribute pii\)"):
        again(tmp_path, privacy={"tags": {"A": "hash"}}, schemas=Schemas({1: known}, [1]))


def test_a_clear_path_of_the_first_start_stays_one(tmp_path: Path) -> None:
    """It protects nothing that was protected."""
    policies = {"tags": {"PII": "hash"}, "fields": {"note": "clear"}}
    for _ in range(2):
        start_driver(tmp_path, Schemas({1: TAGGED}, [1]), policies, limits=LENIENT)


def test_validate_says_what_a_start_would_refuse(tmp_path: Path) -> None:
    driver = taught(tmp_path)
    settings = driver.settings.model_copy(update={"privacy": None})
    config = driver.config.model_copy(update={"pipelines": {"clicks": settings}})
    schemas = open_local_pipeline("clicks", config, Schemas({2: NEW}, [2])).schemas
    ((status, message),) = [
        (finding.status, finding.message) for finding in source_checks._privacy("clicks", config, schemas)
    ]
    assert status == "failed"
    assert "'note' of record Event (hash, by tag PII) would be in the clear" in message


def _invoked(*words: str) -> Any:
    result = CliRunner().invoke(app, ["privacy", *words])
    assert result.exit_code == 0, (result.output, result.exception)
    return result.output


def test_the_command_shows_first_and_its_entry_says_who_and_why(tmp_path: Path) -> None:
    driver = taught(tmp_path)
    file = write_config_file(driver.config, tmp_path)
    listed = json.loads(_invoked("list", file, "--json"))
    assert listed["paths"] == [{"record": "Event", "path": "note", "policy": "hash", "source": "tag PII"}]
    assert "Event" in _invoked("list", file)
    result = CliRunner().invoke(app, ["privacy", "release", file, "--path", "nots", "--yes"])
    assert "no protected path 'nots'; did you mean 'note'?" in str(result.exception)
    version = driver.table.snapshot().version
    shown = _invoked("release", file, "--path", "note")
    assert "note of record Event (policy hash) is to be released. From the next start" in shown.replace("\n", " ")
    assert "The same with --yes does it." in shown
    assert driver.table.snapshot().version == version
    document = json.loads(_invoked("release", file, "--path", "*", "--by", "ann", "--reason", "law", "--yes", "--json"))
    assert document["released"] == [{"record": "Event", "path": "note", "policy": "hash", "source": "released"}]
    entry = driver.table.history(1)[0]
    assert (entry.kind, entry.facts["by"], entry.facts["reason"]) == ("privacy", "ann", "law")
    assert json.loads(_invoked("list", file, "--json"))["paths"][0]["source"] == "released"
    # A path that was released is none to propose.
    result = CliRunner().invoke(app, ["privacy", "release", file, "--path", "nots", "--yes"])
    assert "no protected path 'nots'; `headrace privacy list` has all" in str(result.exception)
    result = CliRunner().invoke(app, ["privacy", "release", file, "--record", "Evens", "--path", "note", "--yes"])
    assert "did you mean 'Event'?" in str(result.exception)


def test_a_released_path_that_a_known_schema_tags_stays_protected(tmp_path: Path) -> None:
    driver = taught(tmp_path)
    _invoked("release", write_config_file(driver.config, tmp_path), "--path", "note", "--yes")
    later = again(tmp_path, schemas=Schemas({1: TAGGED, 2: NEW}, [1, 2]))
    later.carry([log({1: note(1)})], {0: 2})
    assert notes(later) == digests(tmp_path, 0, 1)
