"""What a start checks of fields that a client encrypted: it refuses, or rejects a schema alone."""

import json
from base64 import b64decode, b64encode
from pathlib import Path
from typing import Any

import pytest

from headrace.writer.core.errors import ConfigError
from headrace.writer.framing.wire_format import Wire
from headrace.writer.preflight.checks import source_checks
from headrace.writer.schemas.registry import RegistryUnreachable
from tests.servers.csfle import CsfleRegistry
from tests.support.encrypted_fields import CLEAR, EVENT, dead_letter_rows, emails, event, start_driver
from tests.support.field_encryption import Producer, rule
from tests.support.local_driver import log
from tests.support.private_table import hash_of
from tests.support.sample_records import NOW, config, value


class Kms:
    """A KMS of a test: it knows addresses of keys."""

    def __init__(self, **options: str) -> None:
        self.region = options["region"]

    def unwrap(self, text: str, name: str) -> bytes:
        if name != "aws-kms://arn:1":
            raise ConfigError(f"{self.region} has no key {name}")
        return b64decode(text)[::-1]


def test_a_class_of_ones_own_asks_a_kms(tmp_path: Path, registry: CsfleRegistry) -> None:
    registry.register("clicks-value", EVENT, ruleSet={"domainRules": [rule("PII")]})
    registry.keks["shop-kek"] = {"name": "shop-kek", "kmsType": "aws-kms", "kmsKeyId": "arn:1", "kmsProps": {}}
    producer = Producer(registry)
    sealed, key = producer.encrypt("maria"), producer.key("AES256_GCM")
    registry.deks[0]["encryptedKeyMaterial"] = b64encode((b"\x1a\x20" + key)[::-1]).decode()
    aws = {"shop-kek": {"type": f"{__name__}:Kms", "options": {"region": "eu"}}}
    driver = start_driver(tmp_path, registry, decrypt=aws)
    driver.carry([log({0: event(0, sealed)})], {0: 1})
    assert emails(driver) == {0: "maria"}
    with pytest.raises(ConfigError, match=r"'shop-kek' is one of aws-kms, and privacy\.decrypt\.shop-kek has a secret"):
        start_driver(tmp_path / "b", registry)
    registry.keks["shop-kek"]["kmsKeyId"] = "arn:2"
    with pytest.raises(ConfigError, match=r"privacy\.decrypt: eu has no key aws-kms://arn:2"):
        start_driver(tmp_path / "c", registry, decrypt=aws)


@pytest.mark.parametrize(
    ("secret", "message"),
    [
        ("", "the secret of the KEK 'shop-kek' is to be in the environment variable SHOP_SECRET, which is not set"),
        ("wrong", "variable SHOP_SECRET has another secret of the KEK 'shop-kek' than the one by which producers"),
    ],
    ids=["missing", "wrong"],
)  # fmt: skip
def test_a_start_is_refused_without_the_kek(
    tmp_path: Path, registry: CsfleRegistry, secret: str, message: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    registry.register("clicks-value", EVENT, ruleSet={"domainRules": [rule("PII")]})
    Producer(registry).encrypt("maria")
    monkeypatch.setenv("SHOP_SECRET", secret)
    with pytest.raises(ConfigError) as raised:
        start_driver(tmp_path, registry)
    assert str(raised.value).startswith("pipelines.clicks.privacy.decrypt: ")
    assert message in str(raised.value)


BESIDE = {"metadata": {"tags": {"shop.*.note": ["BESIDE"]}, "properties": {}}}


NOTED = {**EVENT, "fields": [*EVENT["fields"], {"name": "note", "type": ["null", "string"]}]}


DECIMAL = {"type": "bytes", "logicalType": "decimal", "precision": 9, "scale": 2}


PRICED = {**EVENT, "fields": [*EVENT["fields"], {"name": "x", "type": ["null", DECIMAL], "confluent:tags": ["CARD"]}]}


@pytest.mark.parametrize(
    ("schema", "beside", "message"),
    [
        (EVENT, {"ruleSet": {"domainRules": [rule("PII", kek="other")]}},
         "field 'email' is encrypted with the KEK 'other', which is not in privacy.decrypt"),
        (EVENT, {"ruleSet": {"encodingRules": [{**rule("PII"), "type": "ENCRYPT_PAYLOAD"}]}},
         "its rule 'PII' encrypts whole values (ENCRYPT_PAYLOAD); privacy.decrypt is for fields (ENCRYPT)"),
        (EVENT, {"ruleSet": {"domainRules": [rule("PII", algorithm="ROT13")]}}, "and the algorithm 'ROT13'"),
        (NOTED, {"ruleSet": {"domainRules": [rule("BESIDE")]}, **BESIDE},
         "field 'note' is decrypted, has no tag of its own, and no policy; name it in privacy.fields"),
        (PRICED, {"ruleSet": {"domainRules": [rule("CARD")]}}, "field 'x' is an encrypted decimal"),
    ],
    ids=["kek", "payload", "algorithm", "policy", "decimal"],
)  # fmt: skip
def test_a_schema_that_cannot_be_decrypted_is_rejected_alone(
    tmp_path: Path, registry: CsfleRegistry, schema: Any, beside: Any, message: str
) -> None:
    registry.register("clicks-value", {**EVENT, "doc": "plain"})
    registry.register("clicks-value", schema, **beside)
    driver = start_driver(tmp_path, registry)
    rejected = value(2, schema, {"id": 1, "at": NOW, "email": "?", "note": None, "x": None})
    driver.carry([log({0: event(0, "maria"), 1: rejected})], {0: 2})
    assert emails(driver) == {0: "maria"}
    (letter,) = dead_letter_rows(driver)
    assert letter["error"].startswith("schema id 2: ")
    assert message in letter["error"]


def test_a_tag_beside_the_schema_counts_where_the_field_has_a_policy(tmp_path: Path, registry: CsfleRegistry) -> None:
    registry.register("clicks-value", NOTED, ruleSet={"domainRules": [rule("BESIDE")]}, **BESIDE)
    sealed = Producer(registry).encrypt("ring twice")
    driver = start_driver(tmp_path, registry, privacy={"fields": {"note": "hash"}})
    driver.carry([log({0: value(1, NOTED, {"id": 0, "at": NOW, "email": "m", "note": sealed})})], {0: 1})
    assert driver.table.rows().to_table(columns=["note"])["note"].to_pylist() == [hash_of(tmp_path, "ring twice")]
    assert emails(driver) == {0: "m"}, "no rule encrypts it"


def test_validate_names_what_is_decrypted(tmp_path: Path, registry: CsfleRegistry) -> None:
    registry.register("clicks-value", EVENT, ruleSet={"domainRules": [rule("PII")]})
    driver = start_driver(tmp_path, registry)
    findings = source_checks._privacy("clicks", driver.config, driver._pipeline.schemas)
    assert [(finding.status, finding.message) for finding in findings] == [("ok", "decrypted: email")]


@pytest.mark.parametrize("decrypt", [None, {}], ids=["decrypt", "no decrypt"])
def test_a_json_schema_whose_values_are_encrypted_is_rejected_alone(
    tmp_path: Path, registry: CsfleRegistry, decrypt: Any
) -> None:
    members = {"id": {"type": "integer"}, "at": {"type": "string", "format": "date-time"}}
    email = {"email": {"type": "string", "confluent:tags": ["PII"]}}
    for schema, rules in (({**members, **email}, [rule("PII")]), (members, [rule("PII", disabled=True)])):
        text = {"type": "object", "properties": schema}
        registry.register("clicks-value", text, schemaType="JSON", ruleSet={"domainRules": rules})
    driver = start_driver(tmp_path, registry, decrypt=decrypt, formats=["json_schema"])
    findings = source_checks.decoder_findings(driver._pipeline.schemas.plan)
    reason = "schema id 1: producers encrypt its values by the rule 'PII', and those of JSON Schemas are not decrypted"
    assert [finding.message.startswith(f"rejected: {reason}") for finding in findings] == [False, True]
    text = json.dumps({"id": 5, "at": f"{NOW:%Y-%m-%dT%H:%M:%SZ}", "email": Producer(registry).encrypt("maria")})
    driver.carry([log({0: b"\0\0\0\0\1" + text.encode(), 1: b"\0\0\0\0\2" + text.encode()})], {0: 2})
    assert driver.table.rows().to_table(columns=["_offset"])["_offset"].to_pylist() == [1]
    assert [row["error"].startswith(reason) for row in dead_letter_rows(driver)] == [True]


def test_a_protobuf_schema_whose_values_are_encrypted_is_rejected_alone(
    tmp_path: Path, registry: CsfleRegistry
) -> None:
    text = 'syntax = "proto3"; message Click { int64 id = 1; int64 at = 2; string email = 3; }'
    registry.register("clicks-value", text, schemaType="PROTOBUF", ruleSet={"domainRules": [rule("PII")]})
    driver = start_driver(tmp_path, registry, decrypt=None, formats=["protobuf"])
    (finding,) = source_checks.decoder_findings(driver._pipeline.schemas.plan)
    reason = (
        "schema id 1: producers encrypt its values by the rule 'PII', and those of Protobuf schemas are not decrypted"
    )
    assert finding.message.startswith(f"rejected: {reason}")
    driver.carry([log({0: b"\0\0\0\0\1\0\x08\5\x10\1"})], {0: 1})
    assert driver.table.rows().to_table(columns=["_offset"]).num_rows == 0
    assert [row["error"].startswith(reason) for row in dead_letter_rows(driver)] == [True]


@pytest.mark.parametrize(
    "change", [{"disabled": True}, {"mode": "WRITE"}, {"type": "CEL_FIELD"}], ids=["disabled", "write", "cel"]
)
def test_rules_that_a_reader_does_not_undo_leave_a_field_as_it_is(
    tmp_path: Path, registry: CsfleRegistry, change: Any
) -> None:
    registry.register("clicks-value", EVENT, ruleSet={"domainRules": [{**rule("PII"), **change}]})
    driver = start_driver(tmp_path, registry)
    driver.carry([log({0: event(0, "maria")})], {0: 1})
    assert emails(driver) == {0: "maria"}


def test_a_dek_registry_that_does_not_answer_holds_a_start(tmp_path: Path, registry: CsfleRegistry) -> None:
    registry.register("clicks-value", EVENT, ruleSet={"domainRules": [rule("PII")]})
    registry.down = True
    with pytest.raises(RegistryUnreachable, match="does not answer"):
        start_driver(tmp_path, registry)


def test_decrypt_needs_a_registry(tmp_path: Path) -> None:
    sections = {"registry": {"files": {1: str(tmp_path / "a.avsc")}}, "keys": {"env": "K"}}
    privacy = {"tags": CLEAR, "decrypt": {"shop-kek": {"env": "S"}}}
    with pytest.raises(ValueError, match=r"privacy\.decrypt asks a registry for data keys; give registry\.url"):
        config(tmp_path, sections=sections, privacy=privacy)


@pytest.mark.parametrize("ids", ["fingerprint", "content"])
def test_ids_of_another_kind_are_refused(tmp_path: Path, registry: CsfleRegistry, ids: Any) -> None:
    """No registry tells rules by them, and an encrypted field would be taken for a clear one."""
    registry.register("clicks-value", EVENT, ruleSet={"domainRules": [rule("PII")]})
    schemas = start_driver(tmp_path, registry)._pipeline.schemas
    schemas._wire = Wire("confluent", ids)
    with pytest.raises(ConfigError, match=rf"clicks\.privacy\.decrypt needs ids of Confluent's.*have {ids} ids"):
        schemas._with_decryption(schemas.plan, 7, "{}")
