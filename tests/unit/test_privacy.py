"""Privacy's primitives against published vectors, and the keyring."""

import json
from typing import Any

import pyarrow as pa
import pytest
from cryptography.hazmat.primitives.ciphers.aead import AESGCM

from headrace.writer.avro import schema as avro
from headrace.writer.columns.schema_plan import RejectedSchema, SchemaPlan, WriterSchema
from headrace.writer.privacy import protected_schema
from headrace.writer.privacy.column_protection import MASK, protect_scalars, value_bytes, value_text
from headrace.writer.privacy.encryption import CannotDecrypt, decrypt_text, derive_key, encrypt_values, key_id_of
from headrace.writer.privacy.hashing import hash_values
from headrace.writer.privacy.keyring import (
    Keyring,
    KeyringPlace,
    KeySource,
)
from headrace.writer.privacy.policy import CLEAR, Action, Policies, strictest
from headrace.writer.privacy.protected_schema import ColumnUse, Privacy
from headrace.writer.specs.spec import Spec
from tests.support.avro_records import record
from tests.support.tagged_schemas import KEYS, nest, places, tagged

# RFC 4231, test cases 1 to 4, 6 and 7: key, data, HMAC-SHA-256.
RFC_4231 = [
    (b"\x0b" * 20, b"Hi There", "b0344c61d8db38535ca8afceaf0bf12b881dc200c9833da726e9376c2e32cff7"),
    (b"Jefe", b"what do ya want for nothing?", "5bdcc146bf60754e6a042426089575c75a003f089d2739839dec58b964ec3843"),
    (b"\xaa" * 20, b"\xdd" * 50, "773ea91e36800e46854db8ebd09181a72959098b3ef8c122d9635514ced565fe"),
    (bytes(range(1, 26)), b"\xcd" * 50, "82558a389a443c0ea4cc819899f2083a85f0faa3e578f8077a2e3ff46729665b"),
    (
        b"\xaa" * 131, b"Test Using Larger Than Block-Size Key - Hash Key First",
        "60e431591ee0b67f0d8a26aacbf5b77f8e0bc6213728c5140546040f0ee37f54",
    ),
    (
        b"\xaa" * 131,
        (
            b"This is a test using a larger than block-size key and a larger than block-size data. The key needs to be "
            b"hashed before being used by the HMAC algorithm."
        ),
        "9b09ffa71b942fcb27635fbcd5b0e944bfdc63644f0713938a7f51535c3a35e2",
    ),
]  # fmt: skip
# C2SP XAES-256-GCM: key, additional data, ciphertext of "XAES-256-GCM" under the nonce "ABCDEFGHIJKLMNOPQRSTUVWX".
XAES = [
    (b"\x01" * 32, b"", "ce546ef63c9cc60765923609b33a9a1974e96e52daf2fcf7075e2271"),
    (b"\x03" * 32, b"c2sp.org/XAES-256-GCM", "986ec1832593df5443a179437fd083bf3fdb41abd740a21f71eb769d"),
]
VALUES: list[tuple[Any, str]] = [
    (pa.scalar("Zoë"), "Zoë"),
    (pa.scalar(-42, pa.int32()), "-42"),
    (pa.scalar(-42, pa.int64()), "-42"),
    (pa.scalar(True), "true"),
    (pa.scalar(1.5, pa.float64()), "1.5"),
    (pa.scalar(1.5, pa.float32()), "1.5"),
    (pa.scalar(0.1, pa.float32()), "0.10000000149011612"),
    (pa.scalar(-0.0, pa.float64()), "-0"),
    (pa.scalar(1e300, pa.float64()), "1e+300"),
    (pa.scalar(100.0, pa.float64()), "100"),
    (pa.scalar(float("nan")), "nan"),
    (pa.scalar("-1.50").cast(pa.decimal128(9, 2)), "-1.50"),
    (pa.scalar("0.0000000001").cast(pa.decimal128(20, 10)), "0.0000000001"),
    (pa.scalar("7").cast(pa.decimal128(9, 0)), "7"),
    (pa.scalar(0, pa.date32()), "1970-01-01"),
    (pa.scalar(-719_162, pa.date32()), "0001-01-01"),
    (pa.scalar(1_763_600_000_000_000, pa.timestamp("us", "UTC")), "2025-11-20 00:53:20.000000"),
]


@pytest.mark.parametrize(("key", "data", "digest"), RFC_4231)
@pytest.mark.parametrize("rows", [1, 300, 9_000, 25_000])
def test_hashes_are_those_of_rfc_4231(key: bytes, data: bytes, digest: str, rows: int) -> None:
    """Few, many, and many that are alike are hashed in three ways."""
    found = hash_values(pa.array([data, None, *(b"%d" % n for n in range(rows)), data]), key).to_pylist()
    assert (found[0], found[1], found[-1]) == (digest, None, digest)
    assert hash_values(pa.array([data] * rows), key).to_pylist() == [digest] * rows


@pytest.mark.parametrize(("key", "about", "sealed"), XAES)
def test_the_derived_key_is_that_of_xaes_256_gcm(key: bytes, about: bytes, sealed: str) -> None:
    nonce = b"ABCDEFGHIJKLMNOPQRSTUVWX"
    cipher = AESGCM(derive_key(key, nonce[:12]))
    assert cipher.encrypt(nonce[12:], b"XAES-256-GCM", about).hex() == sealed


@pytest.mark.parametrize(("value", "text"), VALUES)
def test_a_value_has_one_text(value: Any, text: str) -> None:
    column = pa.array([None, value.as_py(), None], value.type)
    assert value_text(column).to_pylist() == [None, text, None]
    assert value_text(column.slice(1)).to_pylist() == [text, None]
    assert value_bytes(column)[1].as_py() == text.encode()


def test_bytes_are_hashed_as_they_are_and_masked_as_a_whole() -> None:
    column = pa.array([b"\x00\xff", None])
    assert value_bytes(column).to_pylist() == [b"\x00\xff", None]
    assert value_text(column).to_pylist() == ["", None]


@pytest.mark.parametrize(
    ("keep", "value", "masked"),
    [
        (0, "abc", MASK),
        (2, "abc", MASK + "bc"),
        (3, "abc", MASK),
        (4, "abc", MASK),
        (1, "", MASK),
        (1, "añ", MASK + "ñ"),
    ],
)
def test_a_mask_keeps_the_end_of_what_is_longer(keep: int, value: str, masked: str) -> None:
    found = protect_scalars(pa.array([value, None]), Action("mask", keep), KeySource(KeyringPlace()), Keyring())
    assert found.to_pylist() == [masked, None]


def test_an_encrypted_value_names_its_key_and_is_read_by_that_key_alone() -> None:
    key, other = b"k" * 32, b"o" * 32
    text = encrypt_values(pa.array([b"secret", None]), "k1", key).to_pylist()[0]
    assert text.startswith("hr1.k1.")
    assert key_id_of(text) == "k1"
    assert decrypt_text(text, key) == b"secret"
    assert encrypt_values(pa.array([b"secret"]), "k1", key)[0].as_py() != text
    for wrong, with_key in ((text, other), (text.replace("k1", "k2"), key), (text[:-2], key), ("hr1.k1.AAAA", key)):
        with pytest.raises(CannotDecrypt):
            decrypt_text(wrong, with_key)
    assert [key_id_of(one) for one in ("", "hr1.k1", "hr2.k1.x", "plain")] == [None] * 4


def test_the_strictest_of_several_policies_counts() -> None:
    listed = [Action("drop"), Action("encrypt"), Action("hash"), Action("mask"), Action("mask", 4), CLEAR]
    for at, one in enumerate(listed):
        assert strictest(reversed(listed[at:])) == one
    assert strictest([]) == CLEAR


@pytest.mark.parametrize(
    "said", ["mask", {"mask": -1}, {"mask": 2**31}, {"mask": True}, {"mask": 1, "hash": 2}, "", None, 3, []]
)
def test_a_text_that_is_no_policy_is_refused(said: Any) -> None:
    with pytest.raises(ValueError, match="is no policy; write drop, encrypt, hash, clear"):
        Action.of(said)


def planned(schema: Any, keys: KeySource = KEYS, **policies: Any) -> WriterSchema | RejectedSchema:
    made = {
        name: tuple((one, Action.of(said)) for one, said in given.items()) if isinstance(given, dict) else tuple(given)
        for name, given in policies.items()
    }
    plan = SchemaPlan(pa.schema([]), privacy=Privacy(Policies(**made), keys)).extend(1, json.dumps(schema))
    return plan.schemas[1]


USER = record("User", ("email", "string"), ("city", "string"))


def test_a_path_goes_before_tags_and_the_strictest_tag_before_others() -> None:
    both = tagged("string", **{"confluent:tags": ["A", "B"]})
    tags = {"A": {"mask": 2}, "B": "hash"}
    assert places(planned(both, tags=tags)) == {"x": "hash"}
    assert places(planned(both, tags=tags, fields={"x": "clear"})) == {}
    assert places(planned(both, fields={"x": {"mask": 1}})) == {"x": "mask: 1"}


def test_the_policy_of_a_record_counts_in_its_fields_unless_their_paths_have_another() -> None:
    on_field = tagged(USER, pii="hash")
    assert places(planned(on_field, attributes=["pii"])) == {"x.email": "hash", "x.city": "hash"}
    found = planned(on_field, attributes=["pii"], fields={"x.city": "clear"})
    assert places(found) == {"x.email": "hash"}
    on_type = tagged({**USER, "confluent:tags": ["PII"]})
    assert places(planned(on_type, tags={"PII": "hash"})) == {"x.email": "hash", "x.city": "hash"}
    inside = tagged({"type": "array", "items": {"type": "string", "pii": "hash"}})
    assert places(planned(inside, attributes=["pii"])) == {"x.element": "hash"}
    inner = record("User", ("email", "string"))
    inner["fields"][0]["pii"] = "drop"
    assert places(planned(tagged(inner, pii="clear"), attributes=["pii"])) == {"x.email": "drop"}


def test_an_attribute_is_a_policy_or_a_tag_or_its_own_name() -> None:
    for said in ("hash", "PII"):
        assert places(planned(tagged("string", pii=said), attributes=["pii"], tags={"PII": "hash"})) == {"x": "hash"}
    assert places(planned(tagged("string", pii=True), attributes=["pii"], tags={"pii": "drop"})) == {"x": "drop"}
    assert places(planned(tagged("string", pii={"mask": 2}), attributes=["pii"])) == {"x": "mask: 2"}
    assert places(planned(tagged("string", pii=False), attributes=["pii"])) == {}
    assert places(planned(tagged("string", pii="hash"), tags={"PII": "hash"})) == {}, "no attribute counts"


@pytest.mark.parametrize("said", [0, 1, 0.0, "", [], {}, {"mask": 10**30}])
def test_an_attribute_that_is_no_policy_rejects_the_schema(said: Any) -> None:
    found = planned(tagged("string", pii=said), attributes=["pii"], tags={"PII": "hash"})
    assert isinstance(found, RejectedSchema)
    assert "for which there is no policy" in found.reason


def test_the_largest_mask_hides_all() -> None:
    values = pa.array(["abc", None])
    largest = Action.of({"mask": 2**31 - 1})
    assert protect_scalars(values, largest, KeySource(KeyringPlace()), Keyring()).to_pylist() == [MASK, None]


@pytest.mark.parametrize("said", [5, ["PII", {"name": "PII"}], [["PII"]], [None], {"PII": 1}])
def test_tags_that_are_no_texts_reject_the_schema(said: Any) -> None:
    found = planned(tagged("string", **{"confluent:tags": said}), tags={"PII": "hash"})
    assert isinstance(found, RejectedSchema)
    assert "for which there is no policy" in found.reason
    assert places(planned(tagged("string", **{"confluent:tags": None}), tags={"PII": "hash"})) == {}


@pytest.mark.parametrize(
    ("schema", "policies", "message"),
    [
        (tagged("string", **{"confluent:tags": ["X"]}), {}, "field 'x' has the tag 'X', for which there is no policy"),
        (tagged({"type": "map", "values": "int"}), {"fields": {"x": {"mask": 2}}}, "is a map, of whose keys two may"),
        (tagged(["int", {"type": "long", "pii": "hash"}]), {"attributes": ["pii"]}, "a union of two numbers, which"),
        (tagged({"type": "fixed", "name": "headrace.protected.x", "size": 1}), {}, "for protected values; rename it"),
    ],
)  # fmt: skip
def test_a_schema_that_cannot_be_protected_is_rejected(schema: Any, policies: Any, message: str) -> None:
    found = planned(schema, **policies)
    assert isinstance(found, RejectedSchema)
    assert message in found.reason


@pytest.mark.parametrize(
    "beside",
    [
        {"type": "string", "confluent:tags": ["X"]},
        {"type": {"type": "map", "values": "int"}, "pii": {"mask": 2}},
        {"type": ["int", {"type": "long", "pii": "hash"}]},
    ],
)
@pytest.mark.parametrize("first", [1, 2])
@pytest.mark.parametrize("place", [0, 2])
def test_a_schema_that_is_rejected_says_what_is_protected_all_the_same(beside: Any, first: int, place: int) -> None:
    rejected = tagged("string", pii="hash")
    rejected["fields"].insert(place, {"name": "beside", **beside})
    texts = {1: json.dumps(rejected), 2: json.dumps(tagged("string"))}
    plan = SchemaPlan(pa.schema([]), privacy=Privacy(Policies(attributes=("pii",)), KEYS))
    for number in (first, 3 - first):
        plan = plan.extend(number, texts[number])
    assert isinstance(plan.schemas[1], RejectedSchema)
    assert places(plan.schemas[2]) == {"x": "hash"}


def test_a_policy_without_its_key_rejects_the_schema() -> None:
    found = planned(tagged("string", pii="hash"), KeySource(KeyringPlace()), attributes=["pii"])
    assert isinstance(found, RejectedSchema)
    assert "has the policy hash, and there is no such key" in found.reason


@pytest.mark.parametrize(
    ("spec", "path"),
    [
        (Spec("Event", rename=(("x", "who"),)), ("who", "email")),
        (Spec("Event", flatten=("x",)), ("x_email",)),
        (Spec("Event", flatten_all=True, rename=(("x", "who"),)), ("who_email",)),
        (Spec("Other"), ("x", "email")),
    ],
)
@pytest.mark.parametrize("policy", ["encrypt", {"mask": 4}, "hash", "clear"])
def test_a_column_that_a_spec_renames_or_flattens_keeps_its_policy(spec: Spec, path: Any, policy: Any) -> None:
    """Rows whose values have one mask are no duplicates, and ciphertexts make no buckets."""
    uses = {what: ColumnUse(path, what, allows_hash=what == "dedupe") for what in ("dedupe", "bucket")}
    for what, use in uses.items():
        privacy = Privacy(Policies(fields=(("x.email", Action.of(policy)),)), KEYS, (use,))
        found = SchemaPlan(pa.schema([]), privacy=privacy, specs=(spec,)).extend(1, json.dumps(tagged(USER))).schemas[1]
        if policy == "clear" or (policy == "hash" and what == "dedupe"):
            assert isinstance(found, WriterSchema)
        else:
            assert isinstance(found, RejectedSchema)
            assert f"field 'x.email' has the policy {Action.of(policy)}, and is {what}" in found.reason


def test_a_derived_column_is_what_an_expression_makes_of_protected_values() -> None:
    spec = Spec("Event", derive=(("x", "left(x['email'], 2)"),))
    privacy = Privacy(Policies(fields=(("x.email", Action("hash")),)), KEYS, (ColumnUse(("x",), "bucket"),))
    plan = SchemaPlan(pa.schema([]), privacy=privacy, specs=(spec,)).extend(1, json.dumps(tagged(USER)))
    assert isinstance(plan.schemas[1], WriterSchema)


def test_a_type_that_is_protected_in_one_place_has_two_names() -> None:
    schema = tagged(USER) | {"fields": [{"name": "a", "type": USER}, {"name": "b", "type": "User"}]}
    found = planned(schema, fields={"a.email": "drop"})
    assert isinstance(found, WriterSchema)
    first, second = (one["type"] for one in json.loads(found.rows_text)["fields"])
    assert (first["name"], [one["name"] for one in first["fields"]]) == ("User", ["city"])
    assert (second["name"], [one["name"] for one in second["fields"]]) == ("User_2", ["email", "city"])


def test_the_second_name_of_a_type_is_that_of_no_other() -> None:
    other = record("User_2", ("x", "int"))
    schema = tagged(USER) | {
        "fields": [{"name": "a", "type": USER}, *record("R", ("b", "User"), ("c", other))["fields"]]
    }
    assert places(planned(schema, fields={"a.email": "hash"})) == {"a.email": "hash"}


@pytest.mark.parametrize("first", ["both", "alone"])
def test_a_type_that_is_protected_in_one_place_keeps_its_member_of_a_union(first: str) -> None:
    both = record("Event", ("a", USER), ("b", ["int", "User"]))
    alone = record("Event", ("b", ["int", USER]))
    plan = SchemaPlan(pa.schema([]), privacy=Privacy(Policies(fields=(("a.email", Action("hash")),)), KEYS))
    for number, schema in enumerate([both, alone] if first == "both" else [alone, both]):
        plan = plan.extend(number, json.dumps(schema))
        assert isinstance(plan.schemas[number], WriterSchema)
    assert plan.columns.field("b").type.names == ["member0", "member1"]


def test_a_union_of_which_two_branches_are_dropped_has_the_others() -> None:
    kinds = [{"type": "string", "pii": "drop"}, {"type": "int", "pii": "drop"}, "boolean"]
    found = planned(tagged(kinds), attributes=["pii"])
    assert places(found) == {"x.member0": "drop", "x.member1": "drop"}


def test_the_cost_of_a_schema_does_not_grow_with_those_before_it() -> None:
    plan = SchemaPlan(pa.schema([]), privacy=Privacy(Policies(tags=(("PII", Action("hash")),)), KEYS))
    versions = [record("Event", ("x", "string"), ("y", "int")) | {"doc": f"{number}"} for number in range(100)]
    tag = {"type": "string", "confluent:tags": ["PII"]}
    plan = plan.extend(1_000, json.dumps(record("Event", ("x", tag))))
    for number, version in enumerate(versions):
        before = avro.parse.cache_info().misses
        plan = plan.extend(number, json.dumps(version))
        # The schema itself, and that of its protected rows.
        assert avro.parse.cache_info().misses - before <= 2
        assert places(plan.schemas[number]) == {"x": "hash"}


def test_long_paths_count_as_several_of_those_that_a_log_may_have() -> None:
    long = record("Event", *((f"{'x' * 100_000}{number}", {"type": "string", "pii": "hash"}) for number in range(110)))
    found = planned(long, attributes=["pii"])
    assert isinstance(found, RejectedSchema)
    assert "10,000 protected paths" in found.reason


def test_a_union_keeps_its_members_where_one_is_emptied() -> None:
    one = record("One", ("a", "string"))
    found = planned(tagged(["null", one, USER]), fields={"x.member0.a": "drop", "x.member1.email": "hash"})
    assert isinstance(found, WriterSchema)
    plan = SchemaPlan(pa.schema([])).extend(1, found.rows_text)
    assert plan.columns.field("x").type == pa.struct(
        [("member1", pa.struct([("email", "string"), ("city", "string")]))]
    )


def emails(*, tag: bool) -> Any:
    user = record("User", ("email", "string"), ("city", "string"))
    return user | {"fields": [{**user["fields"][0], "pii": "hash"}, user["fields"][1]]} if tag else user


COMPANY = record("Company", ("email", "string"))


@pytest.mark.parametrize("first", ["tagged", "plain", "known at a start"])
@pytest.mark.parametrize(
    ("plain", "place"),
    [
        (["null", COMPANY, emails(tag=False)], "x.member1.email"),
        (["null", COMPANY, emails(tag=False) | {"name": "v2.User"}], "x.member1.email"),
        (["null", COMPANY, emails(tag=False) | {"name": "Person", "aliases": ["x.User", "User"]}], "x.member1.email"),
        (["null", emails(tag=False) | {"name": "Person", "aliases": ["User"]}], "x.email"),
        (["null", emails(tag=False)], "x.email"),
        (emails(tag=False), "x.email"),
        ([COMPANY, {"type": "array", "items": "int"}, "null", emails(tag=False)], "x.member2.email"),
    ],
)  # fmt: skip
@pytest.mark.parametrize("policies", [{"attributes": ("pii",)}, {"fields": (("x.member0.email", Action("hash")),)}])
def test_a_branch_of_a_union_is_protected_at_whatever_position(
    first: str, plain: Any, place: str, policies: dict[str, Any]
) -> None:
    """Branches fill the columns of their names, so a position in one schema says nothing of another."""
    texts = {1: json.dumps(tagged(["null", emails(tag="attributes" in policies), COMPANY])),
             2: json.dumps(tagged(plain))}  # fmt: skip
    plan = SchemaPlan(pa.schema([]), privacy=Privacy(Policies(**policies), KEYS))
    plan = plan.learn_privacy(texts.values()) if first == "known at a start" else plan
    for number in (2, 1) if first == "plain" else (1, 2):
        plan = plan.extend(number, texts[number])
    if isinstance(plan.schemas[1], WriterSchema):  # else a column of one record holds no union
        assert places(plan.schemas[1])["x.member0.email"] == places(plan.schemas[2])[place] == "hash"
        if "attributes" in policies:  # a path means its position in each schema, too
            assert len({*places(plan.schemas[1]), *places(plan.schemas[2])}) == len({"x.member0.email", place})


ORDER = record("Order", ("buyer", ["null", "string", emails(tag=True)]))


@pytest.mark.parametrize(
    ("alone", "in_union", "place"),
    [
        (emails(tag=True), ["null", "string", emails(tag=False)], "x.member1.email"),
        (["null", emails(tag=True)], ["string", emails(tag=False)], "x.member1.email"),
        (
            {"type": "array", "items": emails(tag=True)},
            {"type": "array", "items": ["null", emails(tag=False), "int"]},
            "x.element.member0.email",
        ),
        (ORDER, ["int", record("Order", ("buyer", emails(tag=False)))], "x.member1.buyer.email"),
        (
            record("Order", ("buyer", emails(tag=True))),
            ["int", record("Order", ("buyer", ["null", "string", emails(tag=False)]))],
            "x.member1.buyer.member1.email",
        ),
    ],
)
@pytest.mark.parametrize("first", ["alone", "in a union"])
def test_a_type_that_becomes_a_branch_of_a_union_stays_protected(
    first: str, alone: Any, in_union: Any, place: str
) -> None:
    """A column of a union takes a schema with one of its branches, too."""
    texts = {1: json.dumps(tagged(alone)), 2: json.dumps(tagged(in_union))}
    plan = SchemaPlan(pa.schema([]), privacy=Privacy(Policies(attributes=("pii",)), KEYS))
    for number in (1, 2) if first == "alone" else (2, 1):
        plan = plan.extend(number, texts[number])
    assert plan.privacy is not None
    protection = plan.privacy.protection(avro.parse(texts[2]))
    assert protection is not None
    assert {".".join(path): str(action) for path, action in protection.actions.items()} == {place: "hash"}
    remembered = Privacy(Policies(attributes=("pii",)), KEYS).with_log_policies(plan.privacy.news)
    assert remembered.protection(avro.parse(texts[2])) == protection, "the log alone is enough"


@pytest.mark.parametrize(
    ("said", "plain", "place"),
    [
        ("int", ["null", "boolean", "long"], "x.member1"),
        ("long", ["null", "boolean", "int"], "x.member1"),
        ("float", ["double", "boolean"], "x.member0"),
        ("bytes", ["null", "boolean", "string"], "x.member1"),
        ("int", "long", "x"),
    ],
)
def test_a_branch_whose_type_is_promoted_stays_protected(said: str, plain: Any, place: str) -> None:
    """It fills the same column."""
    texts = {1: json.dumps(tagged(["null", "boolean", {"type": said, "pii": "drop"}])), 2: json.dumps(tagged(plain))}
    plan = SchemaPlan(pa.schema([]), privacy=Privacy(Policies(attributes=("pii",)), KEYS))
    for number in (2, 1):
        plan = plan.extend(number, texts[number])
    assert places(plan.schemas[2]) == {place: "drop"}


def test_of_two_numbers_in_a_union_the_one_that_is_tagged_is_protected() -> None:
    found = planned(tagged(["null", {"type": "int", "pii": "drop"}, "double"]), attributes=["pii"])
    assert places(found) == {"x.member0": "drop"}


def nest_unions(depth: int) -> Any:
    kind: Any = "string"
    for level in range(depth, 0, -1):
        kind = record(f"shop.Level{level}", ("x", ["null", "int", kind]))
    return kind


@pytest.mark.parametrize("kind", [nest(40, aliases=[f"y{number}" for number in range(9)]), nest_unions(30)])
def test_a_schema_whose_aliases_multiply_paths_is_rejected(kind: Any) -> None:
    found = planned(kind, attributes=["pii"])
    assert isinstance(found, RejectedSchema)
    assert "more than 100,000 paths by their aliases" in found.reason


def fields_with_tags(name: str, count: int) -> str:
    columns = record(name, *((f"f{number}", "string") for number in range(count)))
    return json.dumps(columns | {"fields": [{**one, "pii": "hash"} for one in columns["fields"]]})


def test_paths_of_the_log_go_before_those_of_a_schema_that_are_too_many(monkeypatch: pytest.MonkeyPatch) -> None:
    """The schemas of the log's paths may be gone, so a start knows the other schema first."""
    monkeypatch.setattr(protected_schema, "PATHS_MAX", 100)
    privacy = Privacy(Policies(attributes=("pii",)), KEYS)
    recorded = privacy.with_schemas([avro.parse(fields_with_tags("Old", 60))]).news
    start = SchemaPlan(pa.schema([]), privacy=privacy)
    start = start.extend(1, fields_with_tags("New", 60)).restore_policies(recorded, SchemaPlan.extend)
    plan = start.extend(2, fields_with_tags("Old", 10)).extend(3, json.dumps(tagged("string")))
    assert [type(plan.schemas[number]) for number in (1, 2, 3)] == [RejectedSchema, WriterSchema, WriterSchema]


def test_a_branch_that_is_a_tagged_type_is_protected_at_whatever_position() -> None:
    texts = [json.dumps(tagged(["null", "string", one])) for one in ({**COMPANY, "pii": "drop"}, COMPANY)]
    texts.append(json.dumps(tagged(["null", COMPANY, "string"])))
    plan = SchemaPlan(pa.schema([]), privacy=Privacy(Policies(attributes=("pii",)), KEYS)).learn_privacy(texts)
    for number, text in enumerate(texts):
        plan = plan.extend(number, text)
    assert [places(one) for one in plan.schemas.values()] == [{"x.member1": "drop"}] * 2 + [{"x.member0": "drop"}]


def test_a_field_that_is_protected_has_no_default() -> None:
    found = planned(tagged("string", default="someone", pii="hash"), attributes=["pii"])
    assert isinstance(found, WriterSchema)
    assert "someone" not in found.rows_text


def test_without_a_policy_that_applies_a_schema_stays_as_it_is() -> None:
    found = planned(tagged("string"), tags={"PII": "hash"})
    assert isinstance(found, WriterSchema)
    assert found.protection is None
    assert found.rows_text == found.text
