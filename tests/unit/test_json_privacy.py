"""Privacy of JSON values: declared columns, members of JSON texts, members that no column has, reasons and bytes."""

import hmac
import json
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
import yaml

from headrace.writer.avro import schema as avro
from headrace.writer.columns.schema_plan import SchemaPlan, WriterSchema
from headrace.writer.commit.privacy import hidden_columns
from headrace.writer.json.declared import declared_record
from headrace.writer.privacy.encryption import decrypt_text
from headrace.writer.privacy.keyring import KeyringPlace, KeySource
from headrace.writer.privacy.path_policies import PathPolicy
from headrace.writer.privacy.policy import CLEAR, Action, Policies, PrivacyError, ProtectedUse, policy_of_text
from headrace.writer.privacy.protected_schema import ColumnUse, Privacy, check_paths, paths_of
from headrace.writer.privacy.record_sealing import RecordScreen, RecordSealing
from tests.support.canaries import STEM
from tests.support.json_rows import (
    ENCRYPTION_KEY,
    HASH_KEY,
    declared_text,
    privacy_of,
    protect,
    protection_of,
    rows_of,
    write_keyring,
)
from tests.support.sample_records import config

PAYLOAD = {"id": "long", "payload": "json"}
USER = {"id": "long", "user": {"email": "string", "age": "long"}}


@pytest.fixture(scope="module", name="keys")
def _keys(tmp_path_factory: pytest.TempPathFactory) -> KeySource:
    return write_keyring(tmp_path_factory.mktemp("keys"))


def hash_of(text: str) -> str:
    return hmac.digest(HASH_KEY, text.encode(), "sha256").hex()


def protect_payload(keys: KeySource, payload: str | None, fields: Mapping[str, Any]) -> Any:
    rows = [{"id": 1, "payload": payload}]
    return protect(declared_text(PAYLOAD), rows, privacy_of(keys, fields)).to_pylist()[0]["payload"]


def protected_rest(keys: KeySource, declared: Any, value: Any, fields: Mapping[str, Any], *, inside: str = "") -> Any:
    """Return the `rest` of a value, or of an object in it; `none`: there is no such column."""
    rows = protect(declared_text(declared), rows_of(declared, [value]), privacy_of(keys, fields)).to_pylist()
    row = rows[0][inside] if inside else rows[0]
    return row.get("rest", "none")


# --- declared columns ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("kind", "value", "text"),
    [
        ("string", "Zoë", "Zoë"),
        ("long", -42, "-42"),
        ("boolean", True, "true"),
        ("double", 1.5, "1.5"),
        ("binary", b"\x00\xff", None),
        ("decimal(10, 2)", "-1.50", "-1.50"),
        ("timestamp(ms)", 0, "1970-01-01 00:00:00.000000"),
        ("json", '{"a": 1}', '{"a": 1}'),
    ],
)
@pytest.mark.parametrize("around", ["alone", "object", "list", "map"])
def test_declared_columns_are_hashed_by_their_paths(
    keys: KeySource, kind: str, value: Any, text: str | None, around: str
) -> None:
    declared: Any = {"alone": kind, "object": {"x": kind}, "list": [kind], "map": {"*": kind}}[around]
    scalar = value
    if kind.startswith("decimal"):
        scalar = pa.scalar(value).cast(pa.decimal128(10, 2)).as_py()
    held = {"alone": scalar, "object": {"x": scalar}, "list": [scalar, None], "map": [("k", scalar)]}[around]
    row = {"id": 1, "column": held}
    path = "column.x" if around == "object" else "column"
    found = protect(declared_text({"id": "long", "column": declared}), [row], privacy_of(keys, {path: "hash"}))
    digest = hmac.digest(HASH_KEY, value if text is None else text.encode(), "sha256").hex()
    left = found.to_pylist()[0]
    assert left["id"] == 1
    expected = {
        "alone": digest,
        "object": {"x": digest, "rest": None},
        "list": [digest, None],
        "map": [(hash_of("k"), digest)],
    }
    assert left["column"] == expected[around]


def test_declared_columns_are_masked_encrypted_and_dropped(keys: KeySource) -> None:
    declared = {"card": "string", "note": "string", "user": {"pin": "long", "city": "string"}, "list": [{"x": "long"}]}
    value = {"card": "4111", "note": "ring", "user": {"pin": 1, "city": "Graz"}, "list": [{"x": 7}]}
    fields = {"card": {"mask": 2}, "note": "encrypt", "user.pin": "drop", "list.x": "drop", "list.rest": "clear"}
    found = protect(declared_text(declared), rows_of(declared, [value]), privacy_of(keys, fields))
    row = found.to_pylist()[0]
    assert row["card"] == "****11"
    assert decrypt_text(row["note"], ENCRYPTION_KEY) == b"ring"
    assert row["user"] == {"city": "Graz"}
    assert row["list"] == [{"rest": None}]
    assert "rest" not in found.column_names, "an object with something dropped has no rest"


def test_tags_of_a_record_schema_of_json_protect_their_fields(keys: KeySource) -> None:
    schema = json.loads(declared_text({"a": "string", "user": {"email": "string"}, "b": "long"}))
    schema["fields"][0]["confluent:tags"] = ["PII"]
    user = schema["fields"][1]["type"][1]
    user["fields"][0]["confluent:tags"] = ["CARD"]
    row = {"a": "x", "user": {"email": "maria", "rest": None}, "b": 5, "rest": "{}"}
    privacy = privacy_of(keys, {}, {"PII": "hash", "CARD": {"mask": 2}})
    found = protect(json.dumps(schema), [row], privacy).to_pylist()[0]
    assert found == {"a": hash_of("x"), "user": {"email": "****ia", "rest": None}, "b": 5, "rest": "****"}


# --- members of JSON texts -------------------------------------------------------------------------------------------

TEXT = '{ "id": 1.00 ,"email" : "Zo\\u00eb", "n":[ 1e400, {"email":7.50} ],"z":{} }'


@pytest.mark.parametrize(
    ("fields", "left"),
    [
        ({"email": "hash"}, TEXT.replace('"Zo\\u00eb"', f'"{hash_of("Zoë")}"')),
        ({"email": {"mask": 1}}, TEXT.replace('"Zo\\u00eb"', '"****ë"')),
        ({"email": "drop"}, TEXT.replace('"email" : "Zo\\u00eb", ', " ", 1)),
        ({"id": "drop"}, TEXT.replace(' "id": 1.00 ,', "")),
        ({"z": "drop"}, TEXT.replace(',"z":{}', "")),
        ({"id": "hash"}, TEXT.replace("1.00", f'"{hash_of("1.00")}"')),
        ({"z": "hash"}, TEXT.replace("{}", f'"{hash_of("{}")}"')),
        ({"n": "hash"}, TEXT.replace('[ 1e400, {"email":7.50} ]', f'"{hash_of("""[ 1e400, {"email":7.50} ]""")}"')),
        ({"z": {"mask": 1}}, TEXT.replace("{}", '"****"')),
        (
            {"n.email": "hash"},
            TEXT.replace("1e400", f'"{hash_of("1e400")}"').replace("7.50", f'"{hash_of("7.50")}"'),
        ),
        ({"other": "hash", "z.x": "drop", "n.email": "clear"}, TEXT),
        ({"id": "drop", "email": "drop", "n": "drop", "z": "drop"}, "{}"),
        ({"EMAIL": "hash"}, TEXT.replace('"Zo\\u00eb"', f'"{hash_of("Zoë")}"')),
    ],
)  # fmt: skip
def test_a_member_is_protected_and_all_else_stays_verbatim(keys: KeySource, fields: Any, left: str) -> None:
    of_payload = {f"payload.{path}": policy for path, policy in fields.items()}
    found = protect_payload(keys, TEXT, of_payload)
    assert found.replace(" ", "") == left.replace(" ", "")
    assert json.loads(found) == json.loads(left)
    if "drop" not in fields.values():
        assert found == left


def test_an_encrypted_member_is_read_back(keys: KeySource) -> None:
    found = json.loads(protect_payload(keys, '{"a":[{"b":1.50},{"b":"x"},{"b":[null]}]}', {"payload.a.b": "encrypt"}))
    assert [decrypt_text(item["b"], ENCRYPTION_KEY) for item in found["a"]] == [b"1.50", b"x", b"[null]"]


def test_null_stays_null_and_booleans_have_their_text(keys: KeySource) -> None:
    assert protect_payload(keys, None, {"payload.a": "hash"}) is None
    assert protect_payload(keys, "null", {"payload.a": "hash"}) == "null"
    assert protect_payload(keys, '{"a":null,"b":true}', {"payload.a": "hash", "payload.b": "hash"}) == (
        f'{{"a":null,"b":"{hash_of("true")}"}}'
    )
    assert protect_payload(keys, '{"a":null,"b":true}', {"payload.a": "drop"}) == '{"b":true}'


@pytest.mark.parametrize("name", ["Email", "EMAIL", "\\u0065mail", "\uff45mail"])
def test_a_member_is_protected_under_any_spelling(keys: KeySource, name: str) -> None:
    found = protect_payload(keys, f'{{"{name}":"{STEM}","eMail":"{STEM}"}}', {"payload.email": "hash"})
    assert found == f'{{"{name}":"{hash_of(STEM)}","eMail":"{hash_of(STEM)}"}}'


@pytest.mark.parametrize(
    "text",
    [
        f'{{"email":"{STEM}"',
        f'{{"email":"{STEM}","email":"{STEM}"}}',
        f'{{"email":12,"x":"{STEM}","email":1}}',
        f'{{"email":"{STEM}"}}}}',
        f'{{"email":"{STEM}","x":NaN}}',
        f'{{"email":"{STEM}","x":"\\ud800"}}',
        f'{{"user":{{"x":"{STEM}","x":1}}}}',
        f"{STEM}",
        f'"{STEM}"x',
        f'["{STEM}"',
        "",
        '{"email":' + "[" * 5_000 + f'"{STEM}"' + "]" * 5_000 + "}",
    ],
)
def test_a_text_that_is_no_clear_json_is_replaced_wholly(keys: KeySource, text: str) -> None:
    """Also one with a member twice: readers differ in which of them counts."""
    both = {"payload.email": "hash", "payload.user.x": "hash"}
    assert protect_payload(keys, text, both) == f'"{hash_of(text)}"'
    assert protect_payload(keys, text, {**both, "payload.card": {"mask": 4}}) == '"****"'
    assert protect_payload(keys, text, {**both, "payload.card": "drop"}) is None


@pytest.mark.parametrize(
    ("text", "left"),
    [
        ('{"user":"maria"}', '{"user":"HASH"}'),
        ('{"user":["maria",{"email":"maria"},null,[["maria"]]]}', '{"user":["HASH",{"email":"HASH"},null,[["HASH"]]]}'),
        ('"maria"', '"HASH"'),
        ('["maria"]', '["HASH"]'),
        ('[{"user":{"email":"maria"}}]', '[{"user":{"email":"HASH"}}]'),
        ('{"user":[],"x":[1]}', '{"user":[],"x":[1]}'),
    ],
)
def test_what_stands_in_place_of_an_object_on_a_path_is_protected(keys: KeySource, text: str, left: str) -> None:
    found = protect_payload(keys, text, {"payload.user.email": "hash"})
    assert found == left.replace("HASH", hash_of("maria"))


def test_what_stands_in_place_of_an_object_is_dropped_with_its_member(keys: KeySource) -> None:
    assert protect_payload(keys, '{"user":"maria","x":1}', {"payload.user.email": "drop"}) == '{"x":1}'
    assert protect_payload(keys, '{"user":["maria",1]}', {"payload.user.email": "drop"}) == '{"user":[null,null]}'


def test_texts_lie_in_objects_lists_and_maps(keys: KeySource) -> None:
    declared = {"a": {"t": "json"}, "b": ["json"], "c": {"*": "json"}}
    row = {
        "a": {"t": '{"x":1}', "rest": None}, "b": ['{"x":1}', None, '{"y":1}'], "c": [("k", '{"x":1}')], "rest": None,
    }  # fmt: skip
    fields = {"a.t.x": "hash", "b.x": "hash", "c.x": "hash"}
    found = protect(declared_text(declared), [row, row], privacy_of(keys, fields)).slice(1).to_pylist()[0]
    left = f'{{"x":"{hash_of("1")}"}}'
    assert found == {"a": {"t": left, "rest": None}, "b": [left, None, '{"y":1}'], "c": [("k", left)], "rest": None}


def test_a_whole_text_is_hashed_as_a_string(keys: KeySource) -> None:
    assert protect_payload(keys, '{"a":1}', {"payload": "hash"}) == hash_of('{"a":1}')
    assert protect_payload(keys, "{", {"payload": {"mask": 4}}) == "****"


@pytest.mark.parametrize(
    ("fields", "field", "inside"),
    [
        ({"payload": "hash", "payload.card": "drop"}, "payload", "payload.card"),
        ({"payload.user": "hash", "payload.user.city": "clear"}, "payload.user", "payload.user.city"),
        ({"rest": "hash", "rest.x": "drop"}, "rest", "rest.x"),
        ({"id": "hash", "rest.x": "drop"}, "rest", "rest.x"),
    ],
)
def test_a_path_inside_json_that_becomes_one_value_is_refused(
    keys: KeySource, fields: Any, field: str, inside: str
) -> None:
    with pytest.raises(PrivacyError) as refusal:
        protection_of(declared_text(PAYLOAD), privacy_of(keys, fields))
    assert f"field {field!r} is JSON that becomes one value by the policy hash" in str(refusal.value)
    assert f"privacy.fields has {inside!r}, which lies in it; take that path out" in str(refusal.value)


def test_a_dropped_text_has_no_column(keys: KeySource) -> None:
    fields = {"payload": "drop", "payload.card": "hash"}
    found = protect(declared_text(PAYLOAD), [{"id": 1, "payload": "{}"}], privacy_of(keys, fields))
    assert found.column_names == ["id"]


def test_a_start_knows_paths_inside_texts_and_no_others(keys: KeySource) -> None:
    record = avro.parse(declared_text({**PAYLOAD, "x": "string"}))
    inside = privacy_of(keys, {"payload.user.email": "hash", "rest.phone": "hash"}).policies
    check_paths(inside, paths_of(record, inside))
    wrong = privacy_of(keys, {"x.email": "hash"}).policies
    with pytest.raises(PrivacyError, match=r"no known schema has 'x\.email'"):
        check_paths(wrong, paths_of(record, wrong))


@pytest.mark.parametrize("policy", ["hash", "encrypt", "drop"])
def test_a_column_that_is_needed_as_it_is_has_nothing_protected_inside(keys: KeySource, policy: str) -> None:
    uses = (ColumnUse(("payload",), "the event time"), ColumnUse(("rest",), "what buckets are made of"))
    for use, path in zip(uses, ("payload.at", "id"), strict=True):
        privacy = Privacy(privacy_of(keys, {path: policy}).policies, keys, (use,))
        with pytest.raises(ProtectedUse, match=f"has the policy {policy}, and is {use.purpose}"):
            protection_of(declared_text(PAYLOAD), privacy)


def test_no_file_has_bounds_of_a_column_with_protected_members(keys: KeySource) -> None:
    text = declared_text(PAYLOAD)
    protection = protection_of(text, privacy_of(keys, {"payload.email": "hash"}))
    columns = {name: name for name in ("id", "payload", "rest")}
    schema = WriterSchema(text, native=True, columns=columns, protection=protection)
    assert SchemaPlan(pa.schema([]), schemas={1: schema}).unmeasured == {"payload", "rest"}


def test_the_log_remembers_paths_inside_texts(keys: KeySource) -> None:
    text = declared_text(PAYLOAD)
    news = privacy_of(keys, {"payload.email": "hash"}).with_schemas([avro.parse(text)]).news
    assert news == {"declared": {("payload", "email"): PathPolicy(Action("hash"), "path payload.email")}}
    later = Privacy(Policies(fields=(("id", Action("hash")),)), keys).with_log_policies(news)
    with pytest.raises(PrivacyError, match=r"'payload\.email' of record declared .* would be in the clear"):
        later.check_recorded()


def test_a_word_of_another_schema_reaches_into_a_text(keys: KeySource) -> None:
    """A tag of the text itself does not, but the same path had the tag where it was a column."""
    schema = json.loads(declared_text({"id": "long", "payload": {"email": "string"}}))
    schema["fields"][1]["type"][1]["fields"][0]["confluent:tags"] = ["PII"]
    privacy = privacy_of(keys, {}, {"PII": "hash"}).with_schemas([avro.parse(json.dumps(schema))])
    row = {"id": 1, "payload": '{"email":"x"}', "rest": None}
    found = protect(declared_text(PAYLOAD), [row], privacy).to_pylist()[0]
    assert found["payload"] == f'{{"email":"{hash_of("x")}"}}'


# --- members that no column has --------------------------------------------------------------------------------------

STRAY = {"id": 1, "user": {"Email": "maria", "age": "old"}, "x": 1}


def test_the_rest_of_an_object_has_the_policy_of_what_is_protected_in_it(keys: KeySource) -> None:
    inner, outer = '{"Email":"maria","age":"old"}', '{"x":1}'
    hashed = {"user.email": "hash"}
    assert protected_rest(keys, USER, STRAY, hashed, inside="user") == hash_of(inner)
    assert protected_rest(keys, USER, STRAY, hashed) == hash_of(outer)
    assert protected_rest(keys, USER, STRAY, {"user.email": "drop"}, inside="user") == "none"
    assert protected_rest(keys, USER, STRAY, {"user.email": "drop"}) == "none"
    assert protected_rest(keys, USER, STRAY, {"user.email": {"mask": 4}}) == "****"
    encrypted = protected_rest(keys, USER, STRAY, {"user.email": "encrypt"})
    assert decrypt_text(encrypted, ENCRYPTION_KEY) == outer.encode()
    assert protected_rest(keys, USER, STRAY, {"id": "hash"}, inside="user") == inner, "it is of another object"
    assert protected_rest(keys, USER, STRAY, {"id": "clear"}) == outer


def test_a_rest_that_is_clear_by_its_path_stays(keys: KeySource) -> None:
    fields = {"user.email": "hash", "rest": "clear"}
    assert protected_rest(keys, USER, STRAY, fields) == '{"x":1}'
    assert protected_rest(keys, USER, STRAY, fields, inside="user") == hash_of('{"Email":"maria","age":"old"}')
    fields = {"user.email": "hash", "user.rest": "clear", "rest": {"mask": 3}}
    assert protected_rest(keys, USER, STRAY, fields, inside="user") == '{"Email":"maria","age":"old"}'
    assert protected_rest(keys, USER, STRAY, fields) == "****:1}"


def test_members_in_a_rest_have_policies_by_their_paths(keys: KeySource) -> None:
    fields = {"rest.x": "hash"}
    assert protected_rest(keys, USER, STRAY, fields) == f'{{"x":"{hash_of("1")}"}}'
    fields = {"user.rest.email": {"mask": 2}, "rest": "clear"}
    assert protected_rest(keys, USER, STRAY, fields, inside="user") == '{"Email":"****ia","age":"old"}'
    assert protected_rest(keys, USER, STRAY, fields) == '{"x":1}'
    assert protected_rest(keys, USER, STRAY, {"user.rest.email": "hash"}) == hash_of('{"x":1}')


def test_the_policy_of_an_object_is_that_of_its_rest(keys: KeySource) -> None:
    assert protected_rest(keys, USER, STRAY, {"user": "encrypt", "user.email": "clear"}, inside="user") != STRAY
    assert protected_rest(keys, USER, STRAY, {"user": "drop"}) == "none"
    assert protected_rest(keys, USER, STRAY, {"user": {"mask": 9}}, inside="user") == "****", "not even an end stays"


def test_the_rest_is_called_otherwise_beside_a_member_rest(keys: KeySource) -> None:
    declared = {"rest": "string", "email": "string"}
    rows = rows_of(declared, [{"rest": "r", "x": 1}])
    found = protect(declared_text(declared), rows, privacy_of(keys, {"email": "hash"})).to_pylist()[0]
    assert found == {"rest": "r", "email": None, "rest_": hash_of('{"x":1}')}
    found = protect(declared_text(declared), rows, privacy_of(keys, {"rest": "hash", "rest_": "clear"})).to_pylist()[0]
    assert found == {"rest": hash_of("r"), "email": None, "rest_": '{"x":1}'}


@pytest.mark.parametrize("path", [("phone",), ("user", "phone"), ("gone", "deep"), ("user",)])
def test_a_column_that_was_protected_and_is_gone_protects_the_rest(keys: KeySource, path: Any) -> None:
    """Its values are in `rest` from then on."""
    recorded = {"declared": {path: PathPolicy(Action("hash"), "tag PII")}}
    privacy = privacy_of(keys, {}, {"PII": "hash"}).with_log_policies(recorded)
    row = rows_of(USER, [{**STRAY, "phone": STEM}])[0]
    found = protect(declared_text(USER), [row], privacy).to_pylist()[0]
    assert found["rest"] == hash_of(f'{{"x":1,"phone":"{STEM}"}}')
    assert (found["user"]["rest"] == hash_of('{"Email":"maria","age":"old"}')) == (path[0] == "user")
    opted_out = privacy_of(keys, {"rest": "clear"}, {"PII": "hash"}).with_log_policies(recorded)
    assert protect(declared_text(USER), [row], opted_out).to_pylist()[0]["rest"] == row["rest"]


def test_a_rest_that_stands_first_has_the_policy_of_what_follows(keys: KeySource) -> None:
    schema = json.loads(declared_text(USER))
    schema["fields"].reverse()
    found = protect(json.dumps(schema), rows_of(USER, [STRAY]), privacy_of(keys, {"user.email": "hash"}))
    assert found.column_names == ["rest", "user", "id"]
    assert found.to_pylist()[0]["rest"] == hash_of('{"x":1}')


@pytest.mark.parametrize(("formats", "hidden"), [("json", {"user", "rest"}), ("avro", {"user"})])
def test_a_diff_hides_the_rest_of_rows_from_before_a_policy(tmp_path: Path, formats: str, hidden: set[str]) -> None:
    """Old rows have members there that no column had."""
    columns = {"declared": {"at": "timestamp(ms)"}} if formats == "json" else {}
    settings = config(tmp_path, formats=[formats], columns=columns)
    (name,) = settings.pipelines
    recorded = {"declared": {("user", "email"): PathPolicy(Action("hash"), "tag PII")}}
    settings = settings.after_protecting(name, recorded)
    assert hidden_columns(name, settings, ["id", "user", "rest"]) == hidden


def test_a_member_that_was_called_rest_protects_the_column_of_this_name(keys: KeySource) -> None:
    recorded = {"declared": {("rest", "x"): PathPolicy(Action("hash"), "tag PII")}}
    privacy = privacy_of(keys, {}, {"PII": "hash"}).with_log_policies(recorded)
    rows = rows_of(USER, [STRAY])
    assert protect(declared_text(USER), rows, privacy).to_pylist()[0]["rest"] == hash_of('{"x":1}')
    opted_out = privacy_of(keys, {"rest": "clear"}, {"PII": "hash"}).with_log_policies(recorded)
    left = protect(declared_text(USER), rows, opted_out).to_pylist()[0]["rest"]
    assert left == f'{{"x":"{hash_of("1")}"}}', "the log has the path as protected"


def test_policies_of_keys_and_headers_leave_the_rest_alone(keys: KeySource) -> None:
    privacy = privacy_of(keys, {"_key": "hash"}).with_columns(["_key"])
    assert protect(declared_text(USER), rows_of(USER, [STRAY]), privacy).to_pylist()[0]["rest"] == '{"x":1}'


def test_a_rest_is_protected_in_lists(keys: KeySource) -> None:
    declared = {"items": [{"email": "string"}], "x": "long"}
    rows = rows_of(declared, [{"items": [{"Email": "maria"}, {"email": 5}], "x": 1}])
    found = protect(declared_text(declared), rows, privacy_of(keys, {"items.email": "hash"})).to_pylist()[0]
    assert [item["rest"] for item in found["items"]] == [hash_of('{"Email":"maria"}'), hash_of('{"email":5}')]


def test_the_policy_of_a_text_with_several_values_tells_least() -> None:
    actions = [Action("drop"), Action("mask", 4), Action("encrypt"), Action("hash"), CLEAR]
    expected = [Action("drop"), Action("mask"), Action("encrypt"), Action("hash"), CLEAR]
    for index, action in enumerate(expected):
        assert policy_of_text(reversed(actions[index:])) == action
    assert policy_of_text([]) == CLEAR


def test_a_rest_whose_policy_lacks_its_key_rejects_the_schema() -> None:
    recorded = {"declared": {("phone",): PathPolicy(Action("hash"), "path phone")}}
    keyless = KeySource(KeyringPlace())
    privacy = Privacy(Policies(fields=(("id", Action("drop")), ("rest", CLEAR))), keyless).with_log_policies(recorded)
    protection = protection_of(declared_text(PAYLOAD), privacy)
    assert protection is not None
    assert protection.actions == {("id",): Action("drop")}
    privacy = Privacy(Policies(fields=(("payload", CLEAR),)), keyless).with_log_policies(recorded)
    with pytest.raises(PrivacyError, match="has the policy hash, and there is no such key"):
        protection_of(declared_text(PAYLOAD), privacy)


def test_a_producer_of_avro_makes_no_field_a_rest(keys: KeySource) -> None:
    """Only the root of a record schema says that values are JSON."""
    schema = json.loads(declared_record(USER, "rest", "null"))
    del schema["headrace.format"]
    protection = protection_of(json.dumps(schema), privacy_of(keys, {"id": "hash"}))
    assert protection is not None
    assert protection.actions == {("id",): Action("hash")}


def test_the_example_of_the_page_is_what_a_row_has(keys: KeySource) -> None:
    page = (Path(__file__).parents[2] / "docs" / "PRIVACY.md").read_text(encoding="utf-8")
    section = page.partition("## Values that are JSON")[2].partition("\n## ")[0]
    settings = yaml.safe_load(section.partition("```yaml")[2].partition("```")[0])["pipelines"]["shop"]
    declared = settings["columns"]["declared"]
    cells = re.findall(r"(?<=`)[^`|]+(?=`)", section)
    members = [cell for cell in cells if re.match('"(user|payload|source)": ', cell)]
    rows = rows_of(declared, [json.loads(f"{{{', '.join(members)}}}")])
    rows[0]["payload"] = members[1].partition(": ")[2]
    left = protect(declared_text(declared), rows, privacy_of(keys, settings["privacy"]["fields"])).to_pylist()[0]
    assert left["user"]["email"] is None
    assert {left["user"]["country"], left["user"]["rest"], left["payload"], left["rest"]} <= set(cells)


# --- dead letters ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("reason", "shown"),
    [
        ("$.items[3].price: expected an integer, not text", "expected an integer, not text"),
        (f"$.labels['{STEM}']: expected text, not an object", "expected text, not an object"),
        (f"$['expected text, not {STEM}'].a: the member stands there twice", "the member stands there twice"),
        ("it is no JSON: Input data was truncated", "it is no JSON: Input data was truncated"),
        (f"expected an integer, not {STEM}", None),
        (f"expected an integer, not text {STEM}", None),
        (f"$.x: the undeclared member {STEM!r}", None),
        (f"expected {STEM}, not text", None),
    ],
)
def test_reasons_of_json_have_kinds_and_nothing_of_a_value(reason: str, shown: str | None) -> None:
    found = RecordSealing.reason(reason)
    assert STEM not in found
    if shown is None:
        assert "why is left out" in found
    else:
        assert found == shown
        assert RecordSealing.reason(found) == found, "a screen shows it once more"


def test_values_of_json_are_sealed_and_read_back(keys: KeySource) -> None:
    value = json.dumps({"user": {"Email": STEM}, STEM: [STEM]}).encode()
    reason = f'$["{STEM}"]: expected text, not an array'
    record = {"key": b"k", "value": value, "outcome": "dead_letter", "error": reason}
    records = pa.Table.from_pylist([record])
    sealed = RecordSealing(keys).seal(records).drop_columns("error")
    assert STEM not in str(sealed.to_pylist())
    assert STEM not in str(RecordSealing(None).seal(records).drop_columns("error").to_pylist())
    assert RecordSealing(keys).unseal(sealed.to_batches()[0]).column("value").to_pylist() == [value]
    shown = RecordScreen(hides=True).table(records).to_pylist()[0]
    assert STEM not in str(shown)
    assert shown["error"] == "expected text, not an array"
