"""The columns that `headrace init` proposes for a sample of JSON objects."""

import json
from datetime import UTC, datetime, timedelta

import pytest
import yaml

from headrace.writer.json.declared import declared_record
from headrace.writer.preflight.proposal.column_proposal import (
    COLUMNS_MAX,
    declaration,
    declaration_lines,
    leave_out_conflicts,
    propose_columns,
)
from headrace.writer.preflight.proposal.member_statistics import NAMES_MAX, NumberText, collect_statistics, parse_object

NOW = datetime(2026, 11, 20, 12, 30, tzinfo=UTC)
SECONDS = int(NOW.timestamp())


def proposed(texts, reserved=()):
    objects = [members for text in texts if (members := parse_object(text.encode())) is not None]
    columns = propose_columns(collect_statistics(objects), reserved, NOW)
    page = "\n".join(declaration_lines(columns, 0))
    assert (yaml.safe_load(page) or {}) == declaration(columns)
    if declaration(columns):
        declared_record(declaration(columns), "rest", "dead_letter")
    return declaration(columns), page


def proposed_type(values, name="m"):
    """Return the type that a member gets by its JSON texts."""
    columns, _ = proposed([f'{{"{name}": {value}}}' for value in values])
    return columns.get(name)


@pytest.mark.parametrize(
    ("values", "kind"),
    [
        (["1", "-9223372036854775808", "9223372036854775807", "null"], "long"),
        (["1", "9223372036854775808"], "decimal(38, 0)"),
        ([f"-{'9' * 38}"], "decimal(38, 0)"),
        (["9" * 39], "json"),
        (["1", "2.5"], "double"),
        (["1e3"], "double"),
        (["1.0"], "double"),
        (["1e999"], "json"),
        (["0.12345678901234567"], "double"),
        (["0.123456789012345678"], "json"),
        (["9007199254740993", "0.5"], "json"),
        (["9007199254740992", "0.5"], "double"),
        (["true", "null"], "boolean"),
        (["true", "1"], "json"),
        (['"a"', '""'], "string"),
        (['"a"', "1"], "json"),
        (['"2026-11-20"'], "date"),
        (['"2026-02-30"'], "string"),
        (['"2026-11-20T05:37:30Z"', '"2026-11-20 05:37+0100"', '"2026-11-20T05:37:30.123456789-05"'], "timestamp"),
        (['"2026-11-20T05:37:30"'], "timestamp"),
        (['"2026-11-20T05:37:30Z"', '""'], "string"),
        (['"2026-11-20T25:37:30Z"'], "string"),
        (['"0001-01-01T00:00:00+14:00"'], "string"),
        (['"2026-11-20"', '"2026-11-20T05:37:30Z"'], "string"),
        (["[1]", "[]", "[null]"], ["long"]),
        (["[[1.5], []]"], [["double"]]),
        (["[]"], "json"),
        (["[null]"], "json"),
        (['[1, "a"]'], "json"),
        (["[1]", "1"], "json"),
        (["{}"], "json"),
        (['{"a": null}'], "json"),
        (['{"a": 1}', "null"], {"a": "long"}),
        (['[{"a": 1}, {"b": true}]'], [{"a": "long", "b": "boolean"}]),
        (['{"a": 1}', "1"], "json"),
        (["null"], None),
    ],
)
def test_a_member_gets_the_type_that_all_its_values_have(values, kind):
    assert proposed_type(values) == kind


@pytest.mark.parametrize("name", ["at", "createdAt", "event_ts", "time", "eventtime", "Timestamp", "expires"])
@pytest.mark.parametrize(("unit", "scale"), [("s", 1), ("ms", 10**3), ("us", 10**6), ("ns", 10**9)])
def test_a_number_near_the_present_under_the_name_of_a_time_is_one(name, unit, scale):
    ago = int(timedelta(days=19 * 365).total_seconds())
    assert proposed_type([str(SECONDS * scale), str((SECONDS - ago) * scale)], name) == f"timestamp({unit})"


@pytest.mark.parametrize(
    ("name", "value", "kind"),
    [
        ("id", str(SECONDS), "long"),
        ("status", str(SECONDS), "long"),
        ("data", str(SECONDS), "long"),
        ("at", "0", "long"),
        ("at", str(SECONDS - 25 * 366 * 86_400), "long"),
        ("at", f"{SECONDS}.25", "timestamp(s)"),
        ("at", f"{SECONDS}000.25", "double"),
        ("timings", f"[{SECONDS}]", ["long"]),
        ("times_at", f"[{SECONDS}]", ["timestamp(s)"]),
    ],
)
def test_a_number_is_a_time_by_both_its_name_and_its_size(name, value, kind):
    assert proposed_type([value], name) == kind


def test_members_stand_in_the_order_of_their_first_appearance():
    columns, _ = proposed(['{"b": null, "c": 1}', '{"a": 1, "b": {"z": 1, "y": 1}}', '{"c": 1, "b": {"x": 1}}'])
    assert list(columns) == ["b", "c", "a"]
    assert list(columns["b"]) == ["z", "y", "x"]


def test_a_member_that_is_always_null_has_no_column_and_is_named():
    columns, page = proposed(['{"a": 1, "b": null}'])
    assert columns == {"a": "long"}
    assert "# b: always null in the sample. Give it a type, or leave it out." in page


def test_of_names_that_differ_in_case_the_most_frequent_gets_the_column():
    columns, page = proposed(['{"ID": 1, "Id": 2}', '{"Id": 3, "user": {"a": 1, "A": 2}}'])
    assert columns == {"Id": "long", "user": {"a": "long"}}
    assert "# ID: another column is called so but for upper case; the member stays in rest." in page


@pytest.mark.parametrize(
    ("text", "names"),
    [
        ('{"rest": 1, "a": 1}', ["rest", "a"]),
        ('{"rest_": 1, "a": 1}', ["rest_", "a"]),
        ('{"rest": 1, "rest_": 1}', ["rest"]),
        ('{"rest": 1, "REST_": 1}', ["rest"]),
        ('{"REST": 1, "rest": 1}', ["rest"]),
        ('{"REST": 1, "a": 1}', ["a"]),
        ('{"REST": 1, "rest_": 1}', ["rest_"]),
    ],
)
def test_the_column_of_undeclared_members_keeps_its_name(text, names):
    columns, _ = proposed([text])
    assert list(columns) == names


def test_names_of_the_tables_own_columns_are_left_at_the_root_alone():
    columns, page = proposed(['{"_OFFSET": 1, "hour": 2, "a": {"hour": 3}}'], ["_offset", "hour"])
    assert columns == {"a": {"hour": "long"}}
    assert "# hour: the table has a column of its own that is called so; the member stays in rest." in page


@pytest.mark.parametrize(
    "name",
    ["4711", "anna@shop.example", "2026-11-20", "Anna Schmidt", "3f2b8c1e-8a44-4c1d-9a3e-0d9a6f0e1b22", "user-1234567"],
)
def test_a_name_that_looks_like_a_value_is_in_no_page_and_makes_its_object_one_with_any_names(name):
    columns, page = proposed([json.dumps({"scores": {name: 1, "x": 2}, name: 1})])
    assert columns == {"scores": {"*": "long"}}
    assert name not in page
    assert "cannot be those of columns: 1." in page


def test_an_object_whose_names_hardly_repeat_has_members_of_any_name():
    texts = [json.dumps({"carts": {f"x{letter}": {"n": 1.5}, "all": {"n": 2}}}) for letter in "abcdefghijkl"]
    assert proposed(texts)[0] == {"carts": {"*": {"n": "double"}}}
    # A few objects show nothing of the kind.
    assert list(proposed(texts[:2])[0]["carts"]) == ["xa", "all", "xb"]


def test_an_object_with_many_names_has_members_of_any_name_or_is_json_text():
    alike = json.dumps({"m": {f"a{number}": number for number in range(NAMES_MAX + 20)}})
    mixed = json.dumps({"m": {f"a{number}": number if number % 2 else "x" for number in range(60)}})
    assert proposed([alike])[0] == {"m": {"*": "long"}}
    columns, page = proposed([mixed])
    assert columns == {"m": "json"}
    assert "# JSON text: an object with many names, or names like values and values of several kinds." in page


def test_there_are_no_more_columns_than_a_person_reads_and_the_frequent_ones_come_first():
    wide = {f"a{number}": 1 for number in range(COLUMNS_MAX + 20)}
    texts = [json.dumps(wide), json.dumps({"late": {"x": 1, "y": 2}}), json.dumps({"late": {"x": 1}})]
    columns, page = proposed(texts)
    assert list(columns) == [*(f"a{number}" for number in range(COLUMNS_MAX - 2)), "late"]
    assert "# 22 more members, which are in no more of the values than these, stay in rest: a98, a99, " in page
    assert "a107 and 12 more." in page


def test_more_names_than_are_counted_are_said_to_be_in_rest():
    columns, page = proposed([json.dumps({f"a{number}": 1 for number in range(NAMES_MAX + 1)})])
    assert len(columns) == COLUMNS_MAX
    assert page.endswith("# And there are more members, which stay in rest.")


def test_objects_deep_inside_and_wide_ones_are_json_text():
    deep = '{"a":' * 7 + "1" + "}" * 7
    columns, _ = proposed([deep])
    assert columns == {"a": {"a": {"a": {"a": {"a": {"a": "json"}}}}}}
    assert proposed(["[" * 100_000, '{"a": 1}'])[0] == {"a": "long"}
    inner = {f"a{number}": {f"b{member}": 1 for member in range(20)} for number in range(3)}
    columns, page = proposed([json.dumps({"m": inner})])
    assert columns == {"m": "json"}
    assert "# JSON text: its objects would have 60 columns." in page


@pytest.mark.parametrize(
    "value",
    [
        b"", b"[1]", b"1", b"null", b"\xff{}", b'{"a": NaN}', b'{"a": 1, "a": 2}', b'{"a": 1} x', b'{"\\ud800": 1}',
        b"\x00\x00\x00\x00\x07{}",
    ],
)  # fmt: skip
def test_what_no_decoder_takes_is_no_object(value):
    assert parse_object(value) is None


def test_numbers_keep_their_text():
    assert parse_object(b'{"a": 1.00, "b": -0}') == {"a": NumberText("1.00"), "b": NumberText("-0")}


def test_no_value_of_the_sample_is_on_the_page():
    secrets = ["Anna Schmidt", "DE89370400440532013000", "+49 30 1234567", "1998-07-05"]
    person = {"name": secrets[0], "iban": secrets[1], "contact": [{"phone": secrets[2]}], "born": secrets[3]}
    _, page = proposed([json.dumps({"person": person, "by": {secrets[1]: secrets[0]}})])
    assert not [secret for secret in secrets if secret in page]


def test_a_member_that_the_registrys_schemas_have_by_another_type_stays_in_rest():
    fields = {
        "a": "string",
        "b": "long",
        "c": "int",
        "E": "string",
        "at": {"type": "long", "logicalType": "timestamp-micros"},
    }
    record = {"type": "record", "name": "R", "fields": [{"name": name, "type": kind} for name, kind in fields.items()]}
    text = f'{{"a": 1, "b": 2, "c": 3, "d": 4, "e": "x", "at": {SECONDS}}}'
    columns = propose_columns(collect_statistics([parse_object(text.encode())]), [], NOW)
    kept = leave_out_conflicts(columns, [json.dumps(record)])
    assert declaration(kept) == {"b": "long", "c": "long", "d": "long", "at": "timestamp(s)"}
    assert "# a: the registry's schemas have a column of this name and another type" in "\n".join(
        declaration_lines(kept, 0)
    )
