"""Privacy in a pipeline's own table: what is protected, what a start refuses, and keys that change."""

import json
from datetime import timedelta
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from typer.testing import CliRunner

from headrace.recovery.backfill import archive_source
from headrace.writer.batch.dead_letters import DEAD_LETTERS
from headrace.writer.cli.main import app
from headrace.writer.columns.schema_plan import PROVENANCE, RejectedSchema
from headrace.writer.core.errors import ConfigError
from headrace.writer.core.offsets import TopicPartition
from headrace.writer.driver.start.pipeline_start import check_rules, set_rules
from headrace.writer.maintenance.dead_letters.replay import DeadLetterReplay
from headrace.writer.maintenance.dead_letters.selection import Selection
from headrace.writer.maintenance.local_pipeline import open_local_pipeline
from headrace.writer.maintenance.record_commit import RecordTable
from headrace.writer.preflight.checks import source_checks
from headrace.writer.privacy.encryption import decrypt_text
from headrace.writer.privacy.keyring import Keyring, KeyringPlace, KeySource, read_keyring, write_keyring
from headrace.writer.table.factory import all_tables
from headrace.writer.table.ledger.gap_record import GapRecord
from headrace.writer.table.log.snapshot import FORMAT
from tests.support.local_driver import Driver, log
from tests.support.private_table import (
    PRIVACY,
    TAGGED,
    event,
    hash_of,
    ids_of,
    keyring_at,
    start_driver,
    write_config_file,
)
from tests.support.sample_records import EVENT, NOW, Schemas, config, value


def test_rows_hold_what_the_words_of_the_schema_leave(tmp_path: Path) -> None:
    driver = start_driver(tmp_path)
    driver.carry([log({offset: event(offset) for offset in range(5)})], {0: 5})
    rows = driver.table.rows().to_table().to_pylist()
    assert {row["id"] for row in rows} == {hash_of(tmp_path, offset) for offset in range(5)}
    secret = read_keyring(keyring_at(tmp_path)).encryption_keys["k1"]
    assert {decrypt_text(row["note"], secret) for row in rows} == {f"note {offset}".encode() for offset in range(5)}
    assert {row["at"] for row in rows} == {NOW - timedelta(minutes=1)}


def test_the_first_policies_are_an_entry_of_the_log(tmp_path: Path) -> None:
    plain = Driver(tmp_path / "plain")
    plain.start()
    assert (plain.table.snapshot().format, plain.table.snapshot().privacy) == (FORMAT, 0)
    snapshot = start_driver(tmp_path).table.snapshot()
    assert (snapshot.format, snapshot.privacy) == (FORMAT, 1)
    (entry,) = (one.facts for one in start_driver(tmp_path).table.history() if one.kind == "privacy")
    keys = read_keyring(keyring_at(tmp_path))
    assert entry["policies"] == PRIVACY
    assert entry["keys"]["hash"]["fingerprint"] == keys.primary_of("hash").fingerprint  # type: ignore[union-attr]
    assert not any(secret.hex() in json.dumps(entry) for secret in keys.hash_keys.values())


def test_a_schema_whose_tag_has_no_policy_is_rejected_alone(tmp_path: Path) -> None:
    unknown = {**EVENT, "name": "Other", "fields": [*TAGGED["fields"], {"name": "x", "type": "int", "pii": "WHAT"}]}
    driver = start_driver(tmp_path, Schemas({1: TAGGED, 2: unknown}, [1, 2]), limits={"max_failed_ratio": 1})
    driver.carry([log({0: event(0), 1: event(1, unknown, 2, x=1)})], {0: 2})
    assert ids_of(driver) == {hash_of(tmp_path, 0)}
    (why,) = driver.side(driver.dead_letters).rows().to_table(columns=["error"])["error"].to_pylist()
    assert "field 'x' has the tag 'WHAT', for which there is no policy; add one to privacy.tags" in why


@pytest.mark.parametrize("first", [1, 2])
def test_a_schema_without_the_tag_does_not_leak(tmp_path: Path, first: int) -> None:
    """Whichever of them is known first; a renamed field too."""
    renamed = {**EVENT, "fields": [{"name": "number", "aliases": ["id"], "type": "long"}, *EVENT["fields"][1:]]}
    schemas = {1: TAGGED, 2: EVENT, 3: renamed}
    driver = start_driver(tmp_path, Schemas(schemas, [first, 3 - first]), limits={"max_failed_ratio": 1})
    late = value(3, renamed, {"number": 3, "at": NOW, "note": "note 3"})
    driver.carry([log({1: event(1), 2: event(2, EVENT, 2), 3: late})], {0: 4})
    assert ids_of(driver) == {hash_of(tmp_path, offset) for offset in (1, 2, 3)}
    assert not any("note" in note for note in driver.table.rows().to_table(columns=["note"])["note"].to_pylist())


def test_a_tag_that_comes_later_ends_what_cannot_be_protected_any_more(tmp_path: Path) -> None:
    """A column that is a number cannot hold hashes: no record of the type lands in the clear from then on."""
    driver = start_driver(tmp_path, Schemas({1: TAGGED, 2: EVENT}, [2]), limits={"max_failed_ratio": 1})
    driver.carry([log({0: event(0, EVENT, 2)})], {0: 1})
    driver.carry([log({1: event(1), 2: event(2, EVENT, 2)})], {0: 3})
    driver.carry([log({3: event(3, EVENT, 2)})], {0: 4})
    assert ids_of(driver) == {0}
    errors = driver.side(driver.dead_letters).rows().to_table(columns=["error"])["error"].to_pylist()
    assert len(errors) == 3
    assert all("field 'id' is string, but column 'id' holds int64" in why for why in errors)


@pytest.mark.parametrize(
    ("privacy", "message"),
    [
        ({"fields": {"nots": "drop"}}, "privacy.fields: no known schema has 'nots'; did you mean 'note'?"),
        ({"tags": {"PII": "hash"}, "attributes": ["pii"], "fields": {"note": "clear"}}, ""),
    ],
)  # fmt: skip
def test_a_start_holds_the_policies_against_the_schemas(tmp_path: Path, privacy: Any, message: str) -> None:
    if not message:
        assert start_driver(tmp_path, privacy=privacy).table.snapshot().privacy == 1
        return
    with pytest.raises(ConfigError) as raised:
        start_driver(tmp_path, privacy={**privacy, **PRIVACY})
    assert f"pipelines.clicks.{message}" in str(raised.value)


TIMED = {**EVENT, "fields": [EVENT["fields"][0], {**EVENT["fields"][1], "confluent:tags": ["PII"]}, EVENT["fields"][2]]}


def test_a_tag_on_the_event_time_refuses_the_start_and_rejects_a_later_schema(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="field 'at' has the policy hash, and is the event time"):
        start_driver(tmp_path / "a", Schemas({1: TIMED}, [1]))
    driver = start_driver(tmp_path / "b", Schemas({1: EVENT, 2: TIMED}, [1]), limits={"max_failed_ratio": 1})
    driver.carry([log({0: event(0, EVENT, 1), 1: event(1, TIMED, 2)})], {0: 2})
    assert driver.table.rows().count_rows() == 0, "what is to be protected now would be in the clear"
    start_driver(tmp_path / "b", Schemas({1: EVENT, 2: TIMED}, [1, 2]), limits={"max_failed_ratio": 1})


MASKED_MAP = {"name": "labels", "type": {"type": "map", "values": "string"}, "pii": {"mask": 2}}
UNLIKE_NUMBERS = {"name": "count", "type": ["int", {"type": "long", "pii": "hash"}]}
PROTECTED_NAME = {
    "name": "kind", "type": {"type": "enum", "name": "headrace.protected.kind", "symbols": ["A"]}, "pii": "hash",
}  # fmt: skip
UNKNOWN_TAG = {"name": "x", "type": "int", "pii": "WHAT"}


@pytest.mark.parametrize(
    "field", [MASKED_MAP, UNLIKE_NUMBERS, PROTECTED_NAME, UNKNOWN_TAG], ids=lambda one: one["name"]
)
@pytest.mark.parametrize("form", ["delta", "parquet", "iceberg"])
def test_a_schema_that_came_while_the_writer_ran_does_not_keep_it_from_its_next_start(
    tmp_path: Path, form: str, field: Any
) -> None:
    """It is rejected alone at both moments; by new policies, a start holds it against them."""
    bad = {**EVENT, "name": "Other", "fields": [*TAGGED["fields"], field]}
    settings = {"form": form, "limits": {"max_failed_ratio": 1}}
    settings |= {"table": {"name": "s.clicks"}} if form == "iceberg" else {}
    value_of_bad = b"\0\0\0\0\2 broken anyway"
    driver = start_driver(tmp_path, Schemas({1: TAGGED, 2: bad}, [1]), **settings)
    driver.carry([log({0: event(0), 1: value_of_bad})], {0: 2})
    again = start_driver(tmp_path, Schemas({1: TAGGED, 2: bad}, [1, 2]), **settings)
    again.carry([log({2: event(2), 3: value_of_bad})], {0: 4})
    assert ids_of(again) == {hash_of(tmp_path, offset) for offset in (0, 2)}
    assert again.side(again.dead_letters).rows().count_rows() == 2
    (checked,) = source_checks._privacy("clicks", again.config, again._pipeline.schemas)
    assert checked.status == "ok"
    changed = {**PRIVACY, "tags": {**PRIVACY["tags"], "NEW": "drop"}}
    if field is UNKNOWN_TAG:
        start_driver(tmp_path, Schemas({1: TAGGED, 2: bad}, [1, 2]), changed, **settings)
        return
    with pytest.raises(ConfigError, match=r"\(record Other\)"):
        start_driver(tmp_path, Schemas({1: TAGGED, 2: bad}, [1, 2]), changed, **settings)


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"privacy": {"fields": {"at": "hash"}}}, "field 'at' has the policy hash, and is the event time"),
        ({"privacy": {"fields": {"id": "hash"}}, "compact": {"sort_by": ["id"]}}, "rows are put in order by"),
        ({"privacy": {"fields": {"id": "encrypt"}}, "compact": {"dedupe": {"key": ["id"]}}}, "clear or hash"),
        ({"privacy": {"fields": {"id": "hash"}}, "bucket": {"type": "field", "field": "id"}}, "what buckets are made"),
        ({"privacy": {"fields": {"id": "hash"}}, "columns": {"key": "string"}}, "column '_key' of keys or headers"),
        ({"privacy": {"fields": {"id": "rot13"}}}, "'rot13' is no policy; write drop, encrypt, hash, clear"),
        ({"privacy": {}}, "it says nothing"),
    ],
)  # fmt: skip
def test_the_configuration_refuses(tmp_path: Path, settings: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match="1 validation error") as raised:
        config(tmp_path, sections={"keys": {"env": "KEYS"}}, **settings)
    assert message in str(raised.value)


def test_a_hash_may_dedupe(tmp_path: Path) -> None:
    config(
        tmp_path, sections={"keys": {"env": "K"}}, privacy={"fields": {"id": "hash"}},
        compact={"dedupe": {"key": ["id"]}},
    )  # fmt: skip


def test_hashes_need_keys(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match=r"privacy hashes or encrypts .*and there is no section `keys`"):
        config(tmp_path, privacy={"fields": {"id": {"mask": 1}}})
    config(tmp_path, privacy={"fields": {"id": {"mask": 1}}, "dead_letters": "redact"})


def test_a_missing_key_refuses_the_start(tmp_path: Path) -> None:
    sections = {"keys": {"file": str(tmp_path / "none.json")}}
    with pytest.raises(ConfigError, match=r"cannot read the keyring from the file .*none\.json: No such file"):
        Driver(tmp_path, privacy=PRIVACY, sections=sections)
    write_keyring(KeySource(KeyringPlace(str(tmp_path / "none.json"))), Keyring().with_new("hash"))
    with pytest.raises(ConfigError, match=r"has the policy encrypt, and the keyring .* has no such key"):
        Driver(tmp_path, privacy=PRIVACY, sections=sections)


def test_a_keyring_that_all_can_read_is_refused(tmp_path: Path) -> None:
    source = keyring_at(tmp_path)
    Path(source.place.file or "").chmod(0o644)
    with pytest.raises(ConfigError, match="can be read by every user of the machine; chmod 600 it"):
        start_driver(tmp_path)


def test_another_hash_key_refuses_the_start_until_it_is_entered(tmp_path: Path) -> None:
    driver = start_driver(tmp_path)
    driver.carry([log({0: event(0)})], {0: 1})
    before, file = ids_of(driver), write_config_file(driver.config, tmp_path)
    source = keyring_at(tmp_path)
    write_keyring(source, read_keyring(source).with_new("hash"))
    with pytest.raises(ConfigError, match=r"hash key h2 .* joins break"):
        start_driver(tmp_path)
    with pytest.raises(ConfigError, match="joins break"):
        DeadLetterReplay("clicks", driver.config, driver.schemas).run(Selection(), NOW)
    assert driver.table.snapshot().privacy == 1
    result = CliRunner().invoke(app, ["keys", "check", file])
    assert "hash key h1 is in use and not primary" in str(result.exception)
    snapshot = driver.table.snapshot()
    policies = Path(file).read_text()
    Path(file).write_text(policies.replace('"secret": "encrypt"', '"secret": "hash"'))
    assert Path(file).read_text() != policies, "policies that no start has held against the schemas"
    result = CliRunner().invoke(app, ["keys", "rotate", file, "--break-joins", "--yes"])
    assert result.exit_code == 0, result.output
    assert "hashes of rows from the next start on equal none" in result.output
    assert driver.table.snapshot().privacy_fingerprint == snapshot.privacy_fingerprint
    Path(file).write_text(policies)
    again = start_driver(tmp_path)
    assert again.table.snapshot().privacy == 2
    again.carry([log({0: event(0), 1: event(0)})], {0: 2})
    assert ids_of(again) == {*before, hash_of(tmp_path, 0)}
    assert len(ids_of(again)) == 2
    assert CliRunner().invoke(app, ["keys", "check", file]).exit_code == 0


def test_a_lost_keyring_is_not_made_anew_until_its_values_are_given_up(tmp_path: Path) -> None:
    driver = start_driver(tmp_path)
    driver.carry([log({0: event(0)})], {0: 1})
    file = write_config_file(driver.config, tmp_path)
    ring = Path(keyring_at(tmp_path).place.file or "")
    former = ring.read_text()
    ring.unlink()
    for options in ([], ["--break-joins"]):
        result = CliRunner().invoke(app, ["keys", "rotate", file, *options, "--yes"])
        assert "there is no keyring in" in str(result.exception)
        assert "rows of clicks were hashed or encrypted with keys of one" in str(result.exception)
        assert not ring.exists()
    # Its hash key is the former one: only what is encrypted is lost.
    other_key = json.loads(Keyring().with_new("encrypt").to_text(None))
    ring.write_text(json.dumps(json.loads(former) | other_key))
    ring.chmod(0o600)
    with pytest.raises(ConfigError, match="lacks the key that the rows of pipeline 'clicks' were encrypted with"):
        start_driver(tmp_path)
    assert "lacks the key that the log names" in str(CliRunner().invoke(app, ["keys", "check", file]).exception)
    ring.write_text(former)
    start_driver(tmp_path)
    ring.unlink()
    result = CliRunner().invoke(app, ["keys", "rotate", file, "--accept-loss", "--yes"])
    assert result.exit_code == 0, result.output
    assert "nobody can read the values" in result.output
    assert "hashes of rows from the next start on equal none" in result.output
    assert CliRunner().invoke(app, ["keys", "check", file]).exit_code == 0
    start_driver(tmp_path).carry([log({0: event(0), 1: event(1)})], {0: 2})


def test_a_new_encryption_key_is_for_new_values_and_the_former_reads_on(tmp_path: Path) -> None:
    driver = start_driver(tmp_path)
    driver.carry([log({0: event(0)})], {0: 1})
    file = write_config_file(driver.config, tmp_path)
    shown = CliRunner().invoke(app, ["keys", "rotate", file])
    assert "encrypt key k2 is made" in shown.output
    assert "The same with --yes does it." in shown.output
    assert CliRunner().invoke(app, ["keys", "rotate", file, "--yes"]).exit_code == 0
    again = start_driver(tmp_path)
    again.carry([log({0: event(0), 1: event(1)})], {0: 2})
    notes = again.table.rows().to_table(columns=["note"])["note"].to_pylist()
    ring = read_keyring(keyring_at(tmp_path))
    assert {decrypt_text(note, ring.encryption_keys[note.split(".")[1]]) for note in notes} == {b"note 0", b"note 1"}
    assert {note.split(".")[1] for note in notes} == {"k1", "k2"}
    result = CliRunner().invoke(app, ["keys", "check", file, "--json"])
    assert result.exit_code == 0, result.exception
    document = json.loads(result.output)
    assert {(key["id"], key["primary"], bool(key["pipelines"])) for key in document["keys"]} == {
        ("h1", True, True), ("k1", False, False), ("k2", True, True),
    }  # fmt: skip


def test_a_replay_gives_the_same_hashes_and_none_by_other_policies(tmp_path: Path) -> None:
    driver = start_driver(tmp_path, Schemas({1: TAGGED}, []), limits={"max_failed_ratio": 1})
    driver.carry([log({0: event(0, TAGGED, 9), 1: event(1)})], {0: 2})
    later = Schemas({1: TAGGED, 9: TAGGED}, [1])
    other = driver.config.model_copy(
        update={"pipelines": {"clicks": driver.settings.model_copy(update={"privacy": None})}}
    )  # fmt: skip
    with pytest.raises(ConfigError, match="privacy policies of pipeline 'clicks' are not those by which its writer"):
        DeadLetterReplay("clicks", other, later).run(Selection(), NOW)
    assert DeadLetterReplay("clicks", driver.config, later).run(Selection(), NOW).rows == 1
    assert ids_of(driver) == {hash_of(tmp_path, 0), hash_of(tmp_path, 1)}


def test_columns_of_keys_and_headers_are_protected(tmp_path: Path) -> None:
    columns = {"key": "string", "headers": "_headers", "header_columns": {"who": "user"}}
    privacy = {**PRIVACY, "fields": {"_key": "hash", "_headers": "hash", "who": {"mask": 3}}}
    driver = start_driver(tmp_path, privacy=privacy, columns=columns)
    driver.carry([log({0: event(0), 1: event(1)}, headers={0: {"user": b"maria"}})], {0: 2})
    rows = driver.table.rows().to_table(columns=["_offset", "_key", "_headers", "who"]).sort_by("_offset").to_pylist()
    assert [row["_key"] for row in rows] == [hash_of(tmp_path, "k0"), hash_of(tmp_path, "k1")]
    assert [row["who"] for row in rows] == ["****ria", None]
    assert rows[0]["_headers"] == [(hash_of(tmp_path, "user"), hash_of(tmp_path, "maria"))]


def test_an_avro_key_is_protected_by_its_own_words(tmp_path: Path) -> None:
    key = {"type": "record", "name": "Key", "fields": [
        {"name": "user", "type": "string", "confluent:tags": ["PII"]}, {"name": "shard", "type": "int"},
    ]}  # fmt: skip
    driver = start_driver(
        tmp_path, Schemas({1: TAGGED, 5: key}, [1], [5]), columns={"key": "avro"},
        privacy={**PRIVACY, "fields": {"_key": "clear"}},
    )  # fmt: skip
    keys = {0: value(5, key, {"user": "maria", "shard": 2})}
    driver.carry([log({0: event(0)}, keys=keys)], {0: 1})
    (row,) = driver.table.rows().to_table(columns=["_key"])["_key"].to_pylist()
    assert row == {"user": hash_of(tmp_path, "maria"), "shard": 2}


def test_the_reason_why_a_key_does_not_decode_quotes_nothing_of_it(tmp_path: Path) -> None:
    key, wider = ({"type": "record", "name": "Key", "fields": [{"name": "user", "type": kind, "pii": "PII"}]}
                  for kind in ("int", "long"))  # fmt: skip
    driver = start_driver(
        tmp_path, Schemas({1: TAGGED, 5: key}, [1], [5]), columns={"key": "avro"},
        privacy={**PRIVACY, "fields": {"_key": "clear"}},
    )  # fmt: skip
    keys = {0: value(5, wider, {"user": 436605551234}), 1: value(5, key, {"user": 1})}
    driver.carry([log({0: event(0), 1: event(1)}, keys=keys)], {0: 2})
    (reason,) = driver.side(driver.dead_letters).rows().to_table(columns=["error"])["error"].to_pylist()
    assert reason == "the key: field '_key.user': a number of more than 5 bytes"


def test_a_spec_sees_what_is_left(tmp_path: Path) -> None:
    specs = {"Event": {"where": f"id <> '{hash_of(tmp_path, 1)}'" if (keyring_at(tmp_path),) else "", "derive": {
        "short": "left(id, 8)"}}}  # fmt: skip
    driver = start_driver(tmp_path, specs=specs)
    driver.carry([log({offset: event(offset) for offset in range(3)})], {0: 3})
    rows = driver.table.rows().to_table(columns=["id", "short"]).to_pylist()
    assert {row["id"] for row in rows} == {hash_of(tmp_path, 0), hash_of(tmp_path, 2)}
    assert all(row["short"] == row["id"][:8] for row in rows)


def test_a_route_sends_on_what_is_left_and_each_table_judges_for_itself(tmp_path: Path) -> None:
    other = {**TAGGED, "name": "Other"}
    lake = tmp_path / "lake"
    targets = {
        "Event": str(lake / "event"),
        "Other": {"location": str(lake / "other"), "compact": {"sort_by": ["id"]}},
    }
    source = keyring_at(tmp_path)
    settings = config(
        tmp_path, privacy=PRIVACY, sections={"keys": {"file": source.place.file}}, limits={"max_failed_ratio": 1},
        route={"by": "record", "targets": targets},
    )  # fmt: skip
    tables = all_tables("clicks", settings)
    tables.main.create(PROVENANCE, [])
    tables.side(settings.pipelines["clicks"].dead_letters).create(DEAD_LETTERS, [])
    tables.main.begin({TopicPartition("clicks", 1, 0): 0}, {"clicks": ["uuid-1"]})
    schemas = Schemas({1: TAGGED, 2: other}, [1, 2])
    set_rules(
        tables.main,
        1,
        settings.pipelines["clicks"],
        open_local_pipeline("clicks", settings, schemas, before_route=True).schemas,
    )
    local_pipeline = open_local_pipeline("clicks", settings, schemas, tables=tables)
    with pytest.raises(ConfigError, match=r"is a column that rows are put in order by.*\(record Other\)"):
        check_rules("clicks", settings.pipelines["clicks"], local_pipeline.schemas, None)
    assert local_pipeline.targets is not None
    plan = local_pipeline.task_plan(NOW, "000001", {"clicks": 1})
    columns = {
        name: target.schemas.columns.field("id").type for name, target in plan.targets.items() if target.schemas.columns
    }
    assert columns == {"Event": "string"}
    (rejected,) = plan.targets["Other"].schemas.schemas.values()
    assert isinstance(rejected, RejectedSchema)
    assert "field 'id' has the policy hash, and is a column that rows are put in order by" in rejected.reason


def test_rows_of_an_archive_that_are_decoded_are_refused(tmp_path: Path) -> None:
    driver = start_driver(tmp_path)
    (tmp_path / "archive").mkdir()
    pq.write_table(pa.table({"partition": [0], "offset": [0], "id": [7]}), tmp_path / "archive" / "part.parquet")
    filling = RecordTable("clicks", driver.config, driver.schemas)
    gap = GapRecord.__new__(GapRecord)
    with pytest.raises(ConfigError, match="rows are decoded already, and pipeline 'clicks' has privacy policies"):
        archive_source.open_archive(filling, gap, [str(tmp_path / "archive")], None, "id")


def test_validate_says_what_is_protected_and_that_the_hash_key_is_another(tmp_path: Path) -> None:
    driver = start_driver(tmp_path)

    def findings() -> list[tuple[str, str]]:
        schemas = open_local_pipeline("clicks", driver.config, driver.schemas).schemas
        return [
            (finding.status, finding.message) for finding in source_checks._privacy("clicks", driver.config, schemas)
        ]

    assert findings() == [("ok", "id (hash), note (encrypt)")]
    source = keyring_at(tmp_path)
    write_keyring(source, read_keyring(source).with_new("hash"))
    ((status, message),) = findings()
    assert status == "failed"
    assert "joins break" in message
