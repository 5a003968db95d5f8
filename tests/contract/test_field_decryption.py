"""Fields that Confluent's client encrypted, as a pipeline with `privacy.decrypt` gets them: before its policies."""

import json
import pickle
from base64 import b64decode, b64encode
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import pytest

from headrace.recovery.backfill import source_factory
from headrace.recovery.backfill.fill_gaps import BackfillRequest, fill_gaps
from headrace.writer.batch.task import Piece
from headrace.writer.columns.schema_plan import PROVENANCE
from headrace.writer.core.errors import ConfigError
from headrace.writer.core.offsets import TopicPartition
from headrace.writer.driver.start.pipeline_start import set_rules
from headrace.writer.maintenance.dead_letters.replay import DeadLetterReplay
from headrace.writer.maintenance.dead_letters.selection import Selection
from headrace.writer.maintenance.local_pipeline import open_local_pipeline
from headrace.writer.maintenance.record_commit import RecordTable
from headrace.writer.privacy import field_decryption
from headrace.writer.privacy.encryption import decrypt_text
from headrace.writer.privacy.keyring import read_keyring
from headrace.writer.schemas.registry import ConfluentRegistry
from headrace.writer.table.factory import all_tables
from tests.servers.csfle import CsfleRegistry, serving
from tests.support.backfill_gaps import Silent, skip_offsets
from tests.support.encrypted_fields import CLEAR, EVENT, dead_letter_rows, emails, event, start_driver
from tests.support.field_encryption import SECRET, Producer, rule
from tests.support.local_driver import log
from tests.support.private_table import hash_of, keyring_at
from tests.support.sample_records import NOW, config, value

pytestmark = pytest.mark.usefixtures("secret_of_producers")
CLIENTS: dict[str, Any] = json.loads((Path(__file__).parents[1] / "fixtures" / "csfle.json").read_text())


def of_clients(root: Path, registry: CsfleRegistry, **settings: Any) -> list[dict[str, Any]]:
    """Rows of what Confluent's own client wrote."""
    driver = start_driver(root, registry, **settings)
    values = [b64decode(value) for value in CLIENTS["values"]]
    driver.carry([log(dict(enumerate(values)))], {0: len(values)})
    assert not dead_letter_rows(driver)
    rows: list[dict[str, Any]] = driver.table.rows().to_table().sort_by("_offset").to_pylist()
    return rows


def test_fields_that_confluents_own_client_encrypted_are_in_the_clear(tmp_path: Path) -> None:
    """All three algorithms, keys of three versions, texts, bytes, lists, maps, nulls and records in records."""
    with serving(CsfleRegistry.of(CLIENTS["registry"])) as registry:
        rows = of_clients(tmp_path, registry)
    assert [row["email"] for row in rows] == [f"maria{n}@example.org" for n in range(4)]
    assert [row["phone"] for row in rows] == ["+43 1 000", None, "+43 1 000", None]
    assert [row["photo"] for row in rows] == [bytes([n, 0, 255]) for n in range(4)]
    assert all(row["names"] == ["Zoë", "", "Max"] and dict(row["labels"]) == {"a": "x", "b": "y"} for row in rows)
    assert [row["address"] for row in rows][:2] == [{"street": "Ring 1", "city": "Wien"}, None]
    assert all(row["card"] == "4111111111111111" for row in rows)
    assert [row["note"] for row in rows] == [f"note {n}" for n in range(4)]


def test_policies_see_the_clear_value(tmp_path: Path) -> None:
    with serving(CsfleRegistry.of(CLIENTS["registry"])) as registry:
        rows = of_clients(tmp_path, registry, tags={"PII": "hash", "CARD": {"mask": 4}, "SECRET": "encrypt"})
    assert [row["email"] for row in rows] == [hash_of(tmp_path, f"maria{n}@example.org") for n in range(4)]
    assert rows[0]["names"] == [hash_of(tmp_path, value) for value in ("Zoë", "", "Max")]
    assert rows[0]["address"] == {"street": hash_of(tmp_path, "Ring 1"), "city": "Wien"}
    assert {row["card"] for row in rows} == {"****1111"}
    key = read_keyring(keyring_at(tmp_path)).encryption_keys["k1"]
    assert [decrypt_text(row["note"], key) for row in rows] == [f"note {n}".encode() for n in range(4)]


def test_without_decrypt_a_field_is_as_it_comes_and_no_key_is_asked_for(tmp_path: Path) -> None:
    with serving(CsfleRegistry.of(CLIENTS["registry"])) as registry:
        rows = of_clients(tmp_path, registry, decrypt={})
    assert not any("maria" in row["email"] for row in rows)
    assert not any(
        "dek-registry" in path or path.endswith("/subjects") for path in registry.asked if path != "/subjects"
    )


def test_keys_are_asked_for_once_and_stand_nowhere_in_a_plan(tmp_path: Path, registry: CsfleRegistry) -> None:
    registry.register("clicks-value", EVENT, ruleSet={"domainRules": [rule("PII")]})
    producer = Producer(registry)
    value = producer.encrypt("maria")
    driver = start_driver(tmp_path, registry)
    driver.carry([log({0: event(0, value)})], {0: 1})
    assert emails(driver) == {0: "maria"}
    assert [path for path in registry.asked if "/deks/" in path] == [
        "/dek-registry/v1/keks/shop-kek/deks/clicks-value/versions/1"
    ]
    plan = driver._pipeline.task_plan(NOW, "1", {})
    sent = pickle.dumps(plan) + repr(plan).encode()
    assert registry.deks[0]["encryptedKeyMaterial"].encode() in sent
    secrets = [producer.key("AES256_GCM"), SECRET.encode()]
    assert not any(secret in sent or b64encode(secret) in sent or repr(secret).encode() in sent for secret in secrets)


def test_a_value_that_does_not_decrypt_is_a_dead_letter_alone(tmp_path: Path, registry: CsfleRegistry) -> None:
    registry.register("clicks-value", EVENT, ruleSet={"domainRules": [rule("PII")]})
    producer = Producer(registry)
    sealed = [producer.encrypt(f"maria{n}") for n in range(4)]
    broken = b64encode(b64decode(sealed[1])[:-1] + b"?").decode()
    driver = start_driver(tmp_path, registry)
    values = [sealed[0], broken, "not encrypted at all", None, "bWFyaWE=", sealed[3]]
    driver.carry([log({index: event(index, value) for index, value in enumerate(values)})], {0: 6})
    assert emails(driver) == {0: "maria0", 3: None, 5: "maria3"}
    result_rows = dead_letter_rows(driver)
    assert [result_row["_offset"] for result_row in result_rows] == [1, 2, 4]
    why = (
        "field 'email' does not decrypt with the KEK 'shop-kek': it was encrypted with another data key, or not at all"
    )
    assert {result_row["error"] for result_row in result_rows} == {why}
    key = read_keyring(keyring_at(tmp_path)).encryption_keys["k1"]
    assert decrypt_text(result_rows[0]["value"].decode(), key) == event(1, broken), (
        "as Kafka has it, and encrypted here"
    )


def test_a_key_that_comes_later_is_asked_for_when_a_value_names_it(tmp_path: Path, registry: CsfleRegistry) -> None:
    """The first key, that of the first value, and later ones; versions that there are not cost no question a value."""
    registry.register("clicks-value", EVENT, ruleSet={"domainRules": [rule("PII", days="1")]})
    driver = start_driver(tmp_path, registry)
    producer = Producer(registry)
    driver.carry([log({0: event(0, producer.encrypt("a", version=1)), 1: event(1, None)})], {0: 2})
    driver._pipeline.schemas.forget_rejections(0)
    driver.carry([log({2: event(2, producer.encrypt("b", version=2))})], {0: 3})
    driver._pipeline.schemas.forget_rejections(0)
    assert emails(driver) == {0: "a", 1: None, 2: "b"}
    other = Producer(CsfleRegistry())
    lost = {
        offset: event(offset, other.encrypt("x", version=version)) for offset, version in ((3, 3), (4, 9), (5, 70_000))
    }
    before = len(registry.asked)
    driver.carry([log({**lost, 6: event(6, producer.encrypt("c", version=1))})], {0: 7})
    assert emails(driver)[6] == "c"
    assert len(registry.asked) - before < 9, "asked once more, not for each value"
    assert {dead_letter_row["error"].rpartition(": ")[2] for dead_letter_row in dead_letter_rows(driver)} == {
        "the registry has no such data key"
    }
    driver._pipeline.schemas.forget_rejections(0)
    driver.carry([log({7: event(7, producer.encrypt("d", version=3))})], {0: 8})
    assert emails(driver)[7] == "d"


def test_a_replay_decrypts_what_the_registry_has_by_now(tmp_path: Path, registry: CsfleRegistry) -> None:
    registry.register("clicks-value", EVENT, ruleSet={"domainRules": [rule("PII")]})
    producer = Producer(CsfleRegistry())
    driver = start_driver(tmp_path, registry)
    driver.carry([log({0: event(0, producer.encrypt("maria"))})], {0: 1})
    assert len(dead_letter_rows(driver)) == 1
    registry.keks, registry.deks = producer.registry.keks, producer.registry.deks
    assert DeadLetterReplay("clicks", driver.config, ConfluentRegistry(registry.url)).run(Selection(), NOW).rows == 1
    assert emails(driver) == {0: "maria"}


def test_a_raw_table_has_records_as_kafka_has_them_and_a_backfill_decrypts(
    tmp_path: Path, registry: CsfleRegistry
) -> None:
    registry.register("clicks-value", EVENT, ruleSet={"domainRules": [rule("PII")]})
    producer = Producer(registry)
    locations = {"location": str(tmp_path / "before"), "raw": str(tmp_path / "raw")}
    before = start_driver(tmp_path, registry, table=locations)
    values = {offset: event(offset, producer.encrypt(f"maria{offset}")) for offset in range(3)}
    before.carry([log(values)], {0: 3})
    key = read_keyring(keyring_at(tmp_path)).encryption_keys["k1"]
    raw = before.side(locations["raw"]).rows().to_table().sort_by("_offset")["value"].to_pylist()
    assert [decrypt_text(value.decode(), key) for value in raw] == list(values.values())
    driver = start_driver(tmp_path, registry)
    skip_offsets(driver, 3)
    driver = start_driver(tmp_path, registry)
    filling = RecordTable("clicks", driver.config, driver.schemas)
    fill_gaps(filling, lambda _: [source_factory.raw(filling, locations["raw"])], BackfillRequest(by="ann"), Silent())
    assert emails(driver) == {offset: f"maria{offset}" for offset in range(3)}


def test_one_schema_of_two_subjects_has_the_keys_of_both(tmp_path: Path, registry: CsfleRegistry) -> None:
    rules = {"domainRules": [rule("PII")]}
    for topic in ("clicks", "views", "others"):
        registry.register(f"{topic}-value", EVENT, ruleSet=rules)
    mine, theirs = Producer(registry), Producer(registry, "views-value")
    values = [mine.encrypt("a"), theirs.encrypt("b"), theirs.encrypt("c"), mine.encrypt("d")]
    driver = start_driver(tmp_path, registry, topics=["clicks", "views"])
    driver.carry([log({index: event(index, value) for index, value in enumerate(values)})], {0: 4})
    assert emails(driver) == dict(enumerate("abcd"))
    assert not any("others" in path for path in registry.asked if "dek" in path)


def test_an_avro_key_is_decrypted_by_its_own_rules(tmp_path: Path, registry: CsfleRegistry) -> None:
    key = {"type": "record", "name": "Key", "fields": [{"name": "user", "type": "string", "confluent:tags": ["PII"]}]}
    registry.register("clicks-value", EVENT)
    registry.register("clicks-key", key, ruleSet={"domainRules": [rule("PII", days="1")]})
    producer = Producer(registry, "clicks-key")
    driver = start_driver(tmp_path, registry, columns={"key": "avro"}, privacy={"fields": {"_key": "clear"}})
    sealed = [producer.encrypt("maria", version=1), "no"]
    keys = {index: value(2, key, {"user": one}) for index, one in enumerate(sealed)}
    driver.carry([log({0: event(0, None), 1: event(1, None)}, keys=keys)], {0: 2})
    assert driver.table.rows().to_table(columns=["_key"])["_key"].to_pylist() == [{"user": "maria"}]
    (letter,) = dead_letter_rows(driver)
    assert letter["error"].startswith("the key: field '_key.user' does not decrypt with the KEK 'shop-kek'")


def test_branches_of_a_union_decrypt_by_their_types(tmp_path: Path, registry: CsfleRegistry) -> None:
    both = {**EVENT, "fields": [*EVENT["fields"], {"name": "x", "type": ["null", "long", "string", "bytes"],
                                                   "confluent:tags": ["PII"]}]}  # fmt: skip
    registry.register("clicks-value", both, ruleSet={"domainRules": [rule("PII")]})
    sealed = Producer(registry).encrypt
    values = [sealed("a"), sealed(b"b"), 5, None]
    driver = start_driver(tmp_path, registry)
    rows = {
        index: value(1, both, {"id": index, "at": NOW, "email": None, "x": one if index != 2 else ("long", one)})
        for index, one in enumerate(values)
    }
    driver.carry([log(rows)], {0: 4})
    assert not dead_letter_rows(driver)
    result_rows = driver.table.rows().to_table(columns=["_offset", "x"]).sort_by("_offset")["x"].to_pylist()
    assert [result_rows[0]["member1"], result_rows[1]["member2"], result_rows[2]["member0"]] == ["a", b"b", 5]


def test_a_route_sends_on_what_is_decrypted(tmp_path: Path, registry: CsfleRegistry) -> None:
    registry.register("clicks-value", EVENT, ruleSet={"domainRules": [rule("PII")]})
    keys, lake = {"file": keyring_at(tmp_path).place.file}, tmp_path / "lake"
    settings = config(
        tmp_path, privacy={"tags": CLEAR, "decrypt": {"shop-kek": {"env": "SHOP_SECRET"}}}, sections={"keys": keys},
        limits={"max_failed_ratio": 1}, route={"by": "record", "targets": {"shop.Event": str(lake / "event")}},
    )  # fmt: skip
    tables = all_tables("clicks", settings)
    tables.main.create(PROVENANCE, [])
    tables.main.begin({TopicPartition("clicks", 1, 0): 0}, {"clicks": ["uuid-1"]})
    known = ConfluentRegistry(registry.url)
    before = open_local_pipeline("clicks", settings, known, before_route=True)
    set_rules(tables.main, 1, settings.pipelines["clicks"], before.schemas)
    local_pipeline = open_local_pipeline("clicks", settings, known, tables=tables)
    records = log({0: event(0, Producer(registry).encrypt("maria")), 1: event(1, "no")})
    report = local_pipeline.run(lambda _: [Piece(records)], lambda _: local_pipeline.task_plan(NOW, "1", {"clicks": 1}))
    counts = report.counts["clicks", 0]
    assert (counts.rows, counts.dead_letters) == (1, 1)
    (file,) = report.targets["shop.Event"].files
    assert pq.read_table(lake / "event" / file.path, columns=["email"])["email"].to_pylist() == ["maria"]


def test_each_value_of_a_batch_is_decrypted_once(
    tmp_path: Path, registry: CsfleRegistry, monkeypatch: pytest.MonkeyPatch
) -> None:
    registry.register("clicks-value", EVENT, ruleSet={"domainRules": [rule("PII", algorithm="AES256_SIV")]})
    producer, count = Producer(registry), 6_000
    few = [producer.encrypt(f"maria{n}", "AES256_SIV") for n in range(5)]
    driver = start_driver(tmp_path, registry)
    asked = list[int]()
    each = field_decryption._FieldDecryption._decrypt_each

    def counting(self: Any, some: Any, kind: Any) -> Any:
        asked.append(len(some))
        return each(self, some, kind)

    monkeypatch.setattr(field_decryption._FieldDecryption, "_decrypt_each", counting)
    driver.carry([log({offset: event(offset, few[offset % 5]) for offset in range(count)})], {0: count})
    assert set(emails(driver).values()) == {f"maria{n}" for n in range(5)}
    assert asked == [5]


def test_the_log_has_the_names_of_keks_and_a_command_keeps_to_them(tmp_path: Path, registry: CsfleRegistry) -> None:
    registry.register("clicks-value", EVENT, ruleSet={"domainRules": [rule("PII")]})
    driver = start_driver(tmp_path, registry)
    (entry,) = (one.facts for one in driver.table.history() if one.kind == "privacy")
    assert entry["policies"]["decrypt"] == ["shop-kek"]
    privacy = driver.settings.privacy.model_copy(update={"decrypt": {}})  # type: ignore[union-attr]
    other = driver.config.model_copy(
        update={"pipelines": {"clicks": driver.settings.model_copy(update={"privacy": privacy})}}
    )  # fmt: skip
    with pytest.raises(ConfigError, match="privacy policies of pipeline 'clicks' are not those by which its writer"):
        DeadLetterReplay("clicks", other, driver.schemas).run(Selection(), NOW)


def test_a_preview_decrypts(tmp_path: Path, registry: CsfleRegistry) -> None:
    registry.register("clicks-value", EVENT, ruleSet={"domainRules": [rule("PII")]})
    driver = start_driver(tmp_path, registry)
    local_pipeline = open_local_pipeline("clicks", driver.config, ConfluentRegistry(registry.url), with_table=False)
    steps, sample = local_pipeline._decode(log({0: event(0, Producer(registry).encrypt("maria"))}), NOW)
    assert [group.rows["email"].to_pylist() for group in sample.groups] == [["maria"]]
    assert not steps.report.unknown_schemas
