"""Odd texts as schemas: each is admitted, and its values are rows, or rejected alone by a sentence."""

import errno
import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import duckdb
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import yaml
from deltalake import DeltaTable, write_deltalake
from typer.testing import CliRunner

from headrace.writer.avro.fingerprint import crc_fingerprint, schema_fingerprint
from headrace.writer.avro.schema_text import UNFORESEEN
from headrace.writer.batch.schema_reader import SchemaReader
from headrace.writer.cli.main import app
from headrace.writer.columns.schema_plan import RejectedSchema, SchemaPlan, WriterSchema, conform
from headrace.writer.framing.wire_format import CONFLUENT, header
from headrace.writer.privacy.policy import Action, Policies
from headrace.writer.privacy.protected_schema import Privacy
from headrace.writer.schemas.registry import SchemaFiles
from headrace.writer.schemas.subjects import full_name
from tests.support.schema_admission import GOOD, KEYS, TEXT, TEXTS, WIDER, Source, in_iceberg, start
from tests.support.schema_texts import MILLIS, record
from tests.support.table_formats import OPENED

Json = Any


def admitted(text: str, plan: SchemaPlan | None = None) -> SchemaPlan:
    """Return the plan with the text's schema, which it must admit."""
    grown = (plan or SchemaPlan(pa.schema([]))).extend(TEXT, text)
    known = grown.schemas[TEXT]
    assert isinstance(known, WriterSchema), known
    return grown


def rows(text: str, *values: str) -> list[dict[str, Any]]:
    """Return the rows of values in hexadecimal, decoded as a task does."""
    plan = admitted(text)
    known = plan.schemas[TEXT]
    assert isinstance(known, WriterSchema)
    framed = pa.array([header(TEXT) + bytes.fromhex(value) for value in values], pa.binary())
    decoded = SchemaReader(plan, CONFLUENT, "").decode_block(framed, TEXT, known)
    assert not decoded.failures
    found: list[dict[str, Any]] = conform(decoded.rows, known, plan).to_pylist()
    return found


def reason(text: str, plan: SchemaPlan | None = None) -> str:
    """Return why a text is rejected. The columns, and what was admitted before, stay as they are."""
    before = (plan or SchemaPlan(pa.schema([]))).extend(GOOD, TEXTS[GOOD])
    after = before.extend(TEXT, text).extend(WIDER, TEXTS[WIDER])
    known = after.schemas[TEXT]
    assert isinstance(known, RejectedSchema), known
    assert UNFORESEEN not in known.reason
    assert after.columns == before.extend(WIDER, TEXTS[WIDER]).columns
    assert isinstance(after.schemas[WIDER], WriterSchema)
    return known.reason


def field(kind: Json, **more: Json) -> str:
    """Return the text of a record with one field."""
    return json.dumps({"type": "record", "name": "R", "fields": [{"name": "a", "type": kind, **more}]})


ENUM = {"type": "enum", "name": "Size", "symbols": ["GRÖSSE", "KLEIN", "", "a-b", "a-b"]}
FAILURE = {"type": "error", "name": "Failure", "fields": [{"name": "code", "type": "int"}]}
ROWS: dict[str, tuple[str, str, Json]] = {
    "a logical type that is a list": (field({"type": "int", "logicalType": ["date"]}), "02", 1),
    "a logical type that is null": (field({"type": "long", "logicalType": None}), "02", 1),
    "a logical type that is a number": (field({"type": "long", "logicalType": 5}), "02", 1),
    "a logical type that is an object": (field({"type": "bytes", "logicalType": {}}), "0261", b"a"),
    "a logical type of another type": (field({"type": "string", "logicalType": "timestamp-millis"}), "0261", "a"),
    "a precision that is text": (
        field({"type": "bytes", "logicalType": "decimal", "precision": "9"}),
        "0261",
        b"a",
    ),
    "a precision that no number has": (
        field({"type": "bytes", "logicalType": "decimal", "precision": 10**30}),
        "0261",
        b"a",
    ),
    "a large precision": (
        field({"type": "bytes", "logicalType": "decimal", "precision": 10**9}),
        "0261",
        "97",
    ),
    "a large scale": (
        field({"type": "bytes", "logicalType": "decimal", "precision": 10**9, "scale": 10**9}),
        "0261",
        "9.7E-999999999",
    ),
    "a type error alone": (field(FAILURE), "0e", {"code": 7}),
    "a type error in a union": (field(["null", FAILURE]), "020e", {"code": 7}),
    "symbols of any letters": (field(ENUM), "00", "GRÖSSE"),
    "symbols that are no names": (field(ENUM), "06", "a-b"),
    "a default of another type": (field("boolean", default="false"), "01", True),
    "a default that is null": (field("string", default=None), "0278", "x"),
    "an integer as the default of a double": (field({"type": "double"}, default=0), "00" * 8, 0.0),
    "a default that is an object": (field({"type": "array", "items": "int"}, default={"a": 1}), "020400", [2]),
    "an object with attributes around a type": (field({"type": {"type": "int"}, "x": 1}), "02", 1),
    "an object with nothing around a union": (field({"type": ["null", "int"]}), "0202", 1),
    "a document that is a number": (field("int", doc=5), "02", 1),
    "marks of a library": (
        json.dumps(json.loads(field({"type": "int", "logicalType": 7})) | {"__fastavro_parsed": True}),
        "02",
        1,
    ),
}


@pytest.mark.parametrize("case", ROWS)
def test_a_schema_whose_values_can_be_read_is_admitted(case: str) -> None:
    text, value, expected = ROWS[case]
    assert rows(text, value) == [{"a": expected}]
    schema_fingerprint(text)


def test_a_default_of_another_type_is_never_used() -> None:
    plan = admitted(json.dumps(record("R", ("a", {"type": "int", "default": "one"}), ("b", "int"))))
    grown = plan.extend(WIDER, json.dumps(record("R", ("b", "int"))))
    known = grown.schemas[WIDER]
    assert isinstance(known, WriterSchema)
    decoded = SchemaReader(grown, CONFLUENT, "").decode_block(pa.array([header(WIDER) + b"\x02"]), WIDER, known)
    assert conform(decoded.rows, known, grown).to_pylist() == [{"a": None, "b": 1}]


ROW = {"type": "record", "name": "Row", "fields": [{"name": "x", "type": "int"}]}
BYTE = {"type": "fixed", "name": "Byte", "size": 1}
NAMES: dict[str, tuple[Json, str, Json]] = {
    "a short name without a namespace": (
        record("Top", ("a", {**ROW, "namespace": ""}), ("b", "Row"), namespace="my.ns"),
        "0204",
        {"a": {"x": 1}, "b": {"x": 2}},
    ),
    "a name that begins with a dot": (
        record("Top", ("a", {**ROW, "name": ".Row"}), ("b", "Row"), namespace="my.ns"),
        "0204",
        {"a": {"x": 1}, "b": {"x": 2}},
    ),
    "a namespace that is null": (
        record("Top", ("a", {**ROW, "namespace": None}), ("b", "my.ns.Row"), namespace="my.ns"),
        "0204",
        {"a": {"x": 1}, "b": {"x": 2}},
    ),
    "a namespace that is a number": (
        record("Top", ("a", {**ROW, "namespace": 5}), ("b", "Row"), namespace="my.ns"),
        "0204",
        {"a": {"x": 1}, "b": {"x": 2}},
    ),
    "the type of its own namespace before that of none": (
        record("Top", ("a", {**ROW, "namespace": ""}), ("b", {**BYTE, "name": "Row"}), ("c", "Row"), namespace="my.ns"),
        "026162",
        {"a": {"x": 1}, "b": b"a", "c": b"b"},
    ),
    "a name in an object": (record("Top", ("a", ROW), ("b", {"type": "Row"})), "0204", {"a": {"x": 1}, "b": {"x": 2}}),
    "a name with attributes beside it": (
        record("Top", ("a", ROW), ("b", {"type": "Row", "doc": "Another.", "order": "ignore"}), ("c", "Row")),
        "020406",
        {"a": {"x": 1}, "b": {"x": 2}, "c": {"x": 3}},
    ),
    "a name before its type": (record("Top", ("a", "Byte"), ("b", BYTE)), "6162", {"a": b"a", "b": b"b"}),
    "a type that is defined twice alike": (
        record("Top", ("a", BYTE), ("b", {**BYTE, "doc": "Again."})),
        "6162",
        {"a": b"a", "b": b"b"},
    ),
    "types named like kinds of types": (
        record("Top", ("a", {**ROW, "name": "record"}), ("b", ["null", "record"])),
        "020204",
        {"a": {"x": 1}, "b": {"x": 2}},
    ),
}


@pytest.mark.parametrize("case", NAMES)
def test_names_are_looked_up_as_java_does(case: str) -> None:
    schema, value, expected = NAMES[case]
    text = json.dumps(schema)
    assert rows(text, value) == [expected]
    schema_fingerprint(text)
    crc_fingerprint(text)


PLAIN = field("int")
SPELLINGS = {
    "a comment before it": f"/* v1 {{ */ {PLAIN}",
    "comments within it": PLAIN.replace(":", ': // "\n/* " */', 1) + " // end",
    "a byte order mark": f"\ufeff{PLAIN}",
    "comment signs in text": PLAIN.replace('"name": "R"', '"doc": "https://x /* y */", "name": "R"'),
    "half of a pair of characters in a document": PLAIN.replace('"name": "R"', '"doc": "\\ud800\ud800", "name": "R"'),
    "a key twice": PLAIN.replace('"name": "R"', '"name": "S", "name": "R"'),
}


@pytest.mark.parametrize("case", SPELLINGS)
def test_a_spelling_that_parsers_take_is_the_same_schema(case: str) -> None:
    text = SPELLINGS[case]
    assert rows(text, "02") == [{"a": 1}]
    assert crc_fingerprint(text) == crc_fingerprint(PLAIN)
    assert schema_fingerprint(text) == schema_fingerprint(PLAIN)
    schemas = start(Source({TEXT: text}, {TEXT: text.replace("int", "string")}))
    assert isinstance(schemas.plan.schemas[TEXT], WriterSchema)


def _deep(levels: int) -> str:
    return field(json.loads('{"type":"array","items":' * levels + '"int"' + "}" * levels))


def _long_names(levels: int, characters: int, branches: int) -> Json:
    """Return a record whose union lies deep in fields of long names."""
    kind: Json = [{"type": "fixed", "name": f"F{number}", "size": 1} for number in range(branches)]
    for level in range(levels):
        kind = record(f"R{level}", ("a" * characters, kind))
    return kind


REFUSED: dict[str, tuple[str, str]] = {
    "nothing": ("", "its text is no JSON"),
    "a bare word": ("string", "its text is no JSON"),
    "half a schema": (PLAIN[:30], "its text is no JSON"),
    "a comment without an end": (f"/* {PLAIN}", "its text is no JSON"),
    "a comment without an end behind it": (f"{PLAIN} /*/", "its text is no JSON"),
    "many comments without an end": (f"{PLAIN} " + "/* " * 300_000, "its text is no JSON"),
    "a page of a proxy": ("<html>503</html>", "its text is no JSON"),
    "brackets without an end": ("[" * 200_000, "more than 500 brackets"),
    "brackets in an attribute": (field("int", x=json.loads("[" * 600 + "]" * 600)), "more than 500 brackets"),
    "a number of many digits": (field("int", default=0).replace(": 0", f": {'9' * 9_000}"), "thousands of digits"),
    "a number": ("5", "it is a number, and no type"),
    "null": ("null", "it is null, and no type"),
    "an empty object": ("{}", "it is an object without a 'type'"),
    "a list of nothing": ("[]", "the root is union"),
    "an alias that is a list": (field("int", aliases=[["b"]]), "the aliases of field 'a' are no list of names"),
    "aliases that are text": (field({**ROW, "aliases": "Old"}), "the aliases of record 'Row' are no list of names"),
    "a name that is a number": (json.dumps(record("R") | {"fields": [{"name": 5, "type": "int"}]}), "without a name"),
    "a field that is text": (json.dumps(record("R") | {"fields": ["a"]}), "record 'R' has a field without a name"),
    "an empty name": (json.dumps(record("R", ("", "int"))), "a field of record 'R' has an empty name"),
    "a control character in a name": (
        json.dumps(record("R", ("a\n", "int"))),
        "named 'a\\n', with a control character",
    ),
    "half of a pair in a name": (json.dumps(record("R", ("\ud800", "int"))), "half of a pair of characters"),
    "half of a pair in a symbol": (field({**ENUM, "symbols": ["\udfff"]}), "enum 'Size' has a symbol that is no text"),
    "two fields of one name": (json.dumps(record("R", ("a", "int"), ("a", "long"))), "record 'R' has two fields 'a'"),
    "a type that is not there": (field("Absent"), "field 'a' is of type 'Absent', which is defined nowhere"),
    "a kind where a type stands": (field("enum", symbols=["A"]), "field 'a' is a bare 'enum'"),
    "a type that is a number": (field({"type": 5}), "field 'a' is a number, and no type"),
    "a type that is defined twice": (
        json.dumps(record("R", ("a", BYTE), ("b", {**BYTE, "size": 2}))),
        "'Byte' is defined twice",
    ),
    "a type named like a primitive": (field({**ROW, "name": "int"}), "named 'int', like a type of Avro"),
    "symbols that are text": (field({**ENUM, "symbols": "AB"}), "enum 'Size' has no list of symbols"),
    "a size that is text": (field({**BYTE, "size": "2"}), "fixed 'Byte' has no size"),
    "a size that is true": (field({**BYTE, "size": True}), "fixed 'Byte' has no size"),
    "a size below 0": (field({**BYTE, "size": -1}), "fixed 'Byte' has a negative size"),
    "a size beyond all records": (field({**BYTE, "size": 10**18}), "fixed 'Byte' is larger than any record"),
    "a union with a branch twice": (field(["string", "null", {"type": "string", "x": 1}]), "two branches 'string'"),
    "a union with a type twice": (field([ROW, {"type": "Row", "x": 1}]), "a union with two branches 'Row'"),
    "a union with a type named like a kind": (
        field([{"type": "array", "items": "int"}, {**ROW, "name": "array"}]),
        "two branches 'array'",
    ),
    "a union inside a union": (field(["int", ["null", "string"]]), "field 'a' has a union inside a union"),
    "a union in an object inside a union": (field(["int", {"type": ["null", "string"], "x": 1}]), "inside a union"),
    "an alias without a name": (field({**ROW, "aliases": ["."]}), "an alias of record 'Row' has an empty name"),
    "an alias of a namespace alone": (field({**ROW, "aliases": ["a."]}), "an alias of record 'Row' has an empty name"),
    "paths of many characters": (json.dumps(_long_names(30, 5_000, 200)), "16,777,216 characters together"),
    "paths of many aliases": (
        json.dumps(record("R", ("a" * 50_000, ["int", {**ROW, "aliases": [f"A{number}" for number in range(400)]}]))),
        "16,777,216 characters together",
    ),
    "an array of nothing": (field({"type": "array"}), "field 'a' is of type array, without 'items'"),
    "many fields": (json.dumps(record("R", *((f"f{n}", "int") for n in range(30_000)))), "more than 20,000 parts"),
    "many levels": (_deep(70), "more than 64 levels deep"),
    "a record in itself": (field({"type": "R", "x": 1}), "contains itself"),
    "a long name": (json.dumps(record("R", ("a" * 50_000, "int"), ("a" * 50_000, "int"))), "record 'R' has two fields"),
}


@pytest.mark.parametrize("case", REFUSED)
def test_other_texts_are_rejected_alone_by_a_sentence(case: str) -> None:
    text, sentence = REFUSED[case]
    found = reason(text)
    assert found.startswith(f"schema id {TEXT}: ")
    assert sentence in found
    assert len(found) < 1_100
    keys = start(Source(keys={TEXT: text, WIDER: '"string"'})).keys
    assert keys is None or isinstance(keys.plan.schemas[WIDER], WriterSchema)


@pytest.mark.parametrize("name", ["ü", "日本", "😀", "a b", "a-b", "1", "a/b", "a" * 300])
def test_a_column_has_the_name_of_its_field_in_each_format(name: str, tmp_path: Path) -> None:
    text = json.dumps(record("R", (name, "int"), ("s", record("Inner", (name, "long")))))
    assert rows(text, "0204") == [{name: 1, "s": {name: 2}}]
    plan = admitted(text)
    known = plan.schemas[TEXT]
    assert isinstance(known, WriterSchema)
    assert known.native, "letters beyond ASCII cost no native decoder"
    columns = pa.schema([*plan.columns, pa.field("hour", pa.string())])
    for form, opened in OPENED.items():
        table = opened(str(tmp_path / form), "p")
        table.create(columns, ["hour"])
        assert table.snapshot().columns().names == columns.names
    file = tmp_path / "rows.parquet"
    pq.write_table(pa.Table.from_pylist([{name: 1, "s": {name: 2}}], plan.columns), file)
    found = duckdb.connect().execute("SELECT * FROM read_parquet(?)", [str(file)])
    assert [column for column, *_ in found.description or ()] == [name, "s"]


DOTTED: Mapping[str, tuple[Json, ...]] = {
    "a struct's": (("a", record("A", ("b", "long"))), ("a.b", "long")),
    "a struct's, in another case": (("a", record("A", ("b", "long"))), ("A.B", "long")),
    "a list's": (("a", {"type": "array", "items": "int"}), ("a.element", "long")),
    "a map's": (("a", {"type": "map", "values": "int"}), ("a.key", "long")),
    "one of an inner struct": (("s", record("S", ("a.b", "int"), ("a", record("A", ("b", "int"))))),),
    "one of a provenance column": (("_topic.x", "long"),),
}


@pytest.mark.parametrize("case", DOTTED)
def test_a_dotted_name_that_iceberg_takes_for_another_is_rejected_there_alone(case: str) -> None:
    text = json.dumps(record("R", *DOTTED[case]))
    known = in_iceberg([text]).schemas[TEXT]
    assert isinstance(known, RejectedSchema)
    assert "has the name of a field inside another" in known.reason
    admitted(text)


def test_a_dotted_name_of_no_other_field_is_a_column_in_iceberg() -> None:
    assert isinstance(in_iceberg([json.dumps(record("R", ("a.b", "long")))]).schemas[TEXT], WriterSchema)


@pytest.mark.parametrize("name", ["a.b", "<string>"])
def test_a_name_that_no_path_of_privacy_can_mean_is_rejected_where_there_are_policies(name: str) -> None:
    plan = SchemaPlan(pa.schema([]), privacy=Privacy(Policies(fields=(("a.b", Action("hash")),)), KEYS))
    for fields in ([(name, "string")], [("x", {"type": "string", "default": "", "aliases": [name]})]):
        text = json.dumps(record("R", ("c", record("C", *fields))))
        assert "no path of privacy can name" in reason(text, plan)


@pytest.mark.parametrize("within", ["alone", "before its type", "in a union", "in an array"])
def test_a_tag_beside_a_name_protects(within: str) -> None:
    tagged = {"type": "Row", "confluent:tags": ["PII"]}
    fields = [
        ("a", ROW),
        ("b", {"in a union": ["null", tagged], "in an array": {"type": "array", "items": tagged}}.get(within, tagged)),
    ]
    schema = record("R", *(reversed(fields) if within == "before its type" else fields))
    plan = SchemaPlan(pa.schema([]), privacy=Privacy(Policies(tags=(("PII", Action("drop")),)), KEYS))
    assert admitted(json.dumps(schema), plan).columns.names == ["a"]


def test_a_file_that_is_no_utf_8_is_rejected_by_its_name_alone(tmp_path: Path) -> None:
    named = tmp_path / "named.avsc"
    named.write_bytes(json.dumps(record("R", ("ä", "int")), ensure_ascii=False).encode("latin-1"))
    described = tmp_path / "described.avsc"
    described.write_bytes(json.dumps(record("R", ("a", "int"), doc="ä"), ensure_ascii=False).encode("latin-1"))
    texts = SchemaFiles({TEXT: named, WIDER: described}).topic_schemas("t")
    assert "half of a pair of characters" in reason(texts[TEXT])
    admitted(texts[WIDER])


def test_a_registered_text_that_is_no_schema_harms_no_test_of_a_pipeline(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    texts = {
        "good": json.dumps(record("R", ("at", MILLIS), ("a", "int"))),
        "comment": "// v2\n" + json.dumps(record("R", ("at", MILLIS), ("a", {"type": "int", "logicalType": ["date"]}))),
        "list": json.dumps(record("R", ("at", MILLIS), ("a", {"type": "int", "aliases": [["b"]], "default": 0}))),
    }
    for name, text in texts.items():
        (tmp_path / f"{name}.avsc").write_text(text, encoding="utf-8")
    pipeline = {"topics": ["t"], "table": {"location": "/lake/t"}, "event_time": {"field": "at"}}
    settings = {"kafka": {"bootstrap_servers": "b:1"}, "registry": {"url": "http://r"}, "checkpoints": "/checkpoints"}
    (tmp_path / "pipelines.yaml").write_text(yaml.safe_dump(settings | {"pipelines": {"p": pipeline}}))
    records = {name: {"hex": f"00 00 00 00 0{number} 80 90 cd a1 c2 68 02"} for number, name in enumerate(texts, 1)}
    expect = {name: {"row": {"a": 1}} for name in texts} | {
        "list": {"exit": "dead_letter", "reason": "the aliases of field 'a' are no list of names"}
    }
    case = {"config": "pipelines.yaml", "now": "2026-11-26T00:00:00Z", "registered": [f"{name}.avsc" for name in texts]}
    (tmp_path / "odd.test.yaml").write_text(yaml.safe_dump(case | {"records": records, "expect": expect}))
    done = CliRunner().invoke(app, ["test", "odd.test.yaml"])
    assert done.exit_code == 0, done.output + str(done.exception)


def test_an_unforeseen_error_rejects_its_schema_alone() -> None:
    def fail(_: SchemaPlan, __: int, text: str, ___: object) -> SchemaPlan:
        raise RecursionError(text)

    before = SchemaPlan(pa.schema([])).extend(GOOD, TEXTS[GOOD])
    after = before.extend_with(TEXT, PLAIN, fail)
    known = after.schemas[TEXT]
    assert isinstance(known, RejectedSchema)
    assert f"{UNFORESEEN} (RecursionError)" in known.reason
    assert (after.columns, after.schemas[GOOD]) == (before.columns, before.schemas[GOOD])


@pytest.mark.parametrize("error", [OSError(errno.ENOSPC, "No space left on device"), MemoryError("malloc failed")])
def test_a_failure_of_the_machine_rejects_no_schema(error: Exception) -> None:
    def fail(_: SchemaPlan, __: int, ___: str, ____: object) -> SchemaPlan:
        raise error

    with pytest.raises(type(error)):
        SchemaPlan(pa.schema([])).extend_with(TEXT, PLAIN, fail)


@pytest.mark.parametrize(("part", "kind", "most"), [("items", "array", 59), ("values", "map", 29)])
def test_columns_are_no_deeper_than_arrow_hands_on(part: str, kind: str, most: int, tmp_path: Path) -> None:
    deep: Json = "int"
    for _ in range(most):
        deep = {"type": kind, part: deep}
    columns = admitted(field(deep)).columns
    write_deltalake(tmp_path, columns.empty_table())
    assert DeltaTable(tmp_path).to_pyarrow_table().schema.names == ["a"]
    assert "more than 60 levels inside one another" in reason(field({"type": kind, part: deep}))


def test_the_name_of_a_schema_is_that_of_the_type_in_an_object() -> None:
    inner = record("Inner", ("a", "int"), namespace="shop")
    text = json.dumps({"type": {"type": inner}, "name": "Outer", "fields": []})
    assert rows(text, "02") == [{"a": 1}]
    assert full_name(text) == "shop.Inner"


def test_columns_are_no_deeper_than_the_readers_of_a_log_take() -> None:
    deep: Json = record("R99", ("x", "int"))
    for level in range(41):
        deep = record(f"R{level}", ("a", deep))
    assert "more than 40 levels inside one another" in reason(json.dumps(deep))
    admitted(json.dumps(deep["fields"][0]["type"]))
