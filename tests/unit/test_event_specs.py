"""Event specs: each rule over a few rows, and what is said of one that does not fit."""

import json
import re
from collections.abc import Mapping
from datetime import date
from decimal import Decimal
from fractions import Fraction
from hashlib import sha256
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from typer.testing import CliRunner

from headrace.writer.cli.main import app
from headrace.writer.columns.schema_plan import RejectedSchema, SchemaPlan, WriterSchema
from headrace.writer.config.loader import checked
from headrace.writer.config.sections.record_rules import EventSpec
from headrace.writer.core.errors import ConfigError
from headrace.writer.maintenance.local_pipeline import open_local_pipeline
from headrace.writer.preflight.checks import source_checks
from headrace.writer.preflight.samples.preview import describe_rows
from headrace.writer.specs.expressions import ALLOWED
from headrace.writer.specs.spec import Spec, SpecError, fingerprint, spec_of, to_json
from headrace.writer.specs.step import ShapedRows, Step, threshold
from tests.support.sample_records import EVENT, NOW, TIME, Schemas, config, event, records

GEO = pa.struct([("lat", pa.float64()), ("lon", pa.float64())])
POINT = pa.struct([("x", pa.int32()), ("y", pa.int32())])
ROWS = pa.table(
    {
        "userId": ["ann", "bob", None, "cid"],
        "n": pa.array([1, 2, 3, None], pa.int32()),
        "text": ["7", "no", "9", None],
        "address": pa.array(
            [{"city": "Ulm", "geo": {"lat": 1.0, "lon": 2.0}}, None, {"city": None, "geo": None}, None],
            pa.struct([("city", pa.string()), ("geo", GEO)]),
        ),
        "items": pa.array(
            [[{"sku": "a", "price": 5}], [], None, [{"sku": "b", "price": 6}]],
            pa.list_(pa.field("element", pa.struct([("sku", pa.string()), ("price", pa.int64())]))),
        ),
        "notes": pa.array([[("k", {"x": 1, "y": 2})]] * 4, pa.map_(pa.string(), POINT)),
    }
)  # fmt: skip


def shaped(rows: pa.Table = ROWS, **section: Any) -> ShapedRows:
    return Step(EventSpec.model_validate(section).spec("shop.Click"), rows.schema).apply(rows)


def refused(**section: Any) -> str:
    with pytest.raises(SpecError) as raised:
        shaped(**section)
    return str(raised.value)


def test_where_leaves_out_what_is_not_true() -> None:
    found = shaped(where="n >= 2")
    assert found.filtered["where"].tolist() == [True, False, False, True], "null is not true"
    assert found.rows["n"].to_pylist() == [2, 3]
    assert found.mask is not None
    assert found.mask.tolist() == [False, True, True, False]


def test_a_spec_that_leaves_nothing_out_says_so() -> None:
    found = shaped(where="n IS NOT NULL OR n IS NULL")
    assert (found.mask, found.filtered, found.failures) == (None, {}, {})


def test_names_have_capitals_and_functions_have_not() -> None:
    assert shaped(derive={"u": "UPPER(userId)"}).rows["u"].to_pylist() == ["ANN", "BOB", None, "CID"]


@pytest.mark.parametrize(
    ("columns", "left"),
    [
        ({"include": ["n"]}, {"n": 1}),
        ({"include": ["address.geo.lat"]}, {"address": {"geo": {"lat": 1.0}}}),
        ({"include": ["items", "notes"], "exclude": ["items.price", "notes.y"]},
         {"items": [{"sku": "a"}], "notes": [("k", {"x": 1})]}),
        ({"include": ["address"], "exclude": ["address.geo.lat", "address.geo.lon"]}, {"address": {"city": "Ulm"}}),
    ],
)  # fmt: skip
def test_columns_are_chosen_at_any_depth(columns: Mapping[str, Any], left: Mapping[str, Any]) -> None:
    for rows in (ROWS, pa.concat_tables([ROWS, ROWS]).combine_chunks().slice(4)):
        found = shaped(rows, columns=columns).rows
        found.validate(full=True)
        assert found.slice(0, 1).to_pylist() == [left]


def test_rename_cast_flatten_and_derive_together() -> None:
    found = shaped(
        where="userId IS NOT NULL", columns={"exclude": ["items", "notes"]}, rename={"userId": "user_id"},
        cast={"text": "long"}, flatten=["address"], derive={"n": "n * 10", "has_city": "address['city'] IS NOT NULL"},
    )  # fmt: skip
    assert found.failures == {1: "cast.text: the value is no long"}
    assert found.rows.to_pylist() == [
        {"user_id": "ann", "text": 7, "address_city": "Ulm", "address_geo_lat": 1.0, "address_geo_lon": 2.0,
         "n": 10, "has_city": True},
        {"user_id": "cid", "text": None, "address_city": None, "address_geo_lat": None, "address_geo_lon": None,
         "n": None, "has_city": False},
    ]  # fmt: skip


@pytest.mark.parametrize(
    "expression",
    [
        "to_timestamp_millis({})", "to_timestamp_seconds({})", "from_unixtime({})",
        "make_array(to_timestamp_millis({}))", "named_struct('at', to_timestamp_millis({}))",
        "make_date(CAST({} AS INT), 1, 1)",
    ],
)  # fmt: skip
@pytest.mark.parametrize("number", [100_000, 300_000_000_000_000, 9_000_000_000_000_000])
def test_a_time_outside_the_years_of_a_table_fails_its_record_alone(expression: str, number: int) -> None:
    rows = pa.table({"n": pa.array([2026, number, None], pa.int64())})
    found = shaped(rows, derive={"x": expression.format("n")})
    is_date, is_near = expression.startswith("make_date"), number < 10**6
    assert list(found.failures) == ([] if is_near and not is_date else [1])
    found.rows["x"].to_pylist()  # raises for what Python's datetime does not hold


@pytest.mark.parametrize("function", [*(f"to_timestamp{unit}" for unit in ("", "_seconds", "_millis", "_micros"))])
@pytest.mark.parametrize("zone", ["UTC", "Asia/Tokyo"])
def test_a_text_is_a_time_in_utc_wherever_it_is_read(function: str, zone: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TZ", zone)
    rows = pa.table({"text": ["2026-06-02T03:04:05+02:00", "2026-06-02 01:04:05", None, "soon"], "at": pa.array(
        [0] * 4, pa.timestamp("us", "UTC"))})  # fmt: skip
    found = shaped(rows, where=f"coalesce({function}(text) > at, true)", derive={"x": f"{function}(text)"})
    assert list(found.failures) == [3]
    assert found.rows["x"].cast(pa.int64()).to_pylist() == [1_780_362_245_000_000, 1_780_362_245_000_000, None]


def test_lists_are_joined() -> None:
    rows = pa.table({"tags": pa.array([["a"], None, []], pa.list_(pa.field("element", pa.string())))})
    found = shaped(rows, derive={"all": "array_concat(tags, tags)"}).rows["all"]
    assert found.to_pylist()[0] == ["a", "a"]


def test_flatten_true_takes_each_record() -> None:
    found = shaped(columns={"include": ["address"]}, flatten=True)
    assert found.rows.column_names == ["address_city", "address_geo_lat", "address_geo_lon"]


@pytest.mark.parametrize("bad", [0, 3, 4, 9])
def test_a_row_on_which_an_expression_fails_stands_alone(bad: int) -> None:
    rows = pa.table({"a": pa.array(range(10)), "b": pa.array(range(100, 110))})
    found = shaped(rows, derive={"x": f"1 / (a - {bad})", "y": "b + 1"})
    assert found.failures == {bad: "derive.x: Divide by zero error"}
    assert found.rows["a"].to_pylist() == [at for at in range(10) if at != bad]
    assert found.rows["y"].to_pylist() == [at + 101 for at in range(10) if at != bad]


def test_a_rule_that_fails_makes_a_dead_letter_and_what_is_filtered_is_not_derived() -> None:
    rows = pa.table({"a": pa.array([0, 1, 2])})
    assert shaped(rows, where="10 / a > 3").failures == {0: "where: Divide by zero error"}
    found = shaped(rows, where="a > 0", derive={"x": "10 / a"})
    assert (found.failures, found.rows["x"].to_pylist()) == ({}, [10, 5])


def test_a_slice_of_nested_rows_is_evaluated() -> None:
    rows = pa.concat_tables([ROWS, ROWS]).combine_chunks().slice(3)
    found = shaped(rows, derive={"city": "address['city']", "sku": "items[1]['sku']"})
    assert found.failures == {}
    assert found.rows["city"].to_pylist() == [None, "Ulm", None, None, None]


# Sampling: SHA-256 of FIPS 180-4, and which of these stay at a share.

VECTORS = {
    "": "e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855",
    "abc": "ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad",
    "user-2": "d92b69cfb82cecab45c753f56002b2c0e6d01f132fe39f2c878858dc9528e10b",
}  # fmt: skip


def test_the_hash_of_a_sample_is_sha256_of_the_text() -> None:
    assert sha256(b"abc").hexdigest() == VECTORS["abc"]
    rows = pa.table({"k": [*VECTORS, None]})
    digests = shaped(rows, derive={"d": "encode(sha256(coalesce(k, '')), 'hex')"}).rows["d"].to_pylist()
    assert digests[:3] == list(VECTORS.values())
    assert digests[3] == VECTORS[""], "null is the empty text"


@pytest.mark.parametrize(
    ("share", "least"),
    [("50 %", "8" + "0" * 63), ("1 %", "028f5c" + "28f5c" * 11 + "290"), (1, "f" * 64)],
)  # fmt: skip
def test_the_threshold_of_a_share(share: Any, least: str) -> None:
    spec = EventSpec.model_validate({"sample": {"share": share, "by": "k"}}).spec("x")
    assert spec.sample is not None
    assert threshold(spec.sample.share) == least


@pytest.mark.parametrize("kind", [pa.string(), pa.binary(), pa.int64()])
def test_a_sample_keeps_the_same_keys_and_a_smaller_share_keeps_a_part(kind: pa.DataType) -> None:
    keys = [str(at) for at in range(2000)]
    rows = pa.table({"k": pa.array(keys).cast(kind)})
    kept: list[set[Any]] = []
    for share in ("20 %", 0.05):
        found = shaped(rows, sample={"share": share, "by": "k"}).rows["k"].cast(pa.string()).to_pylist()
        limit = Fraction(1, 5) if share == "20 %" else Fraction(1, 20)
        assert found == [key for key in keys if int(sha256(key.encode()).hexdigest(), 16) < limit * 2**256]
        kept.append(set(found))
    assert kept[1] < kept[0]


@pytest.mark.parametrize(
    ("section", "message"),
    [
        ({"where": "useId = 'x'"}, "where: no schema of its records has a column 'useId'; did you mean 'userId'?"),
        ({"where": "n"}, "where: it gives int32, not true or false; write a comparison"),
        ({"where": "n >"}, "where: Expected: an expression, found: EOF"),
        ({"where": "lowr(userId) = 'a'"}, "where: there is no function lowr; did you mean 'lower'?"),
        ({"where": "address['town'] = 'x'"}, "where: Field town not found in struct"),
        ({"derive": {"t": "now()"}}, "derive.t: the function now is not allowed, for it is not known to give"),
        ({"derive": {"t": "random()"}}, "derive.t: the function random is not allowed"),
        ({"derive": {"t": "current_date"}}, "derive.t: the function current_date is not allowed"),
        ({"derive": {"t": "ln(n)"}}, "derive.t: the function ln is not allowed"),
        ({"derive": {"t": "sum(n)"}}, "derive.t: AggregateFunction is not for single rows"),
        ({"derive": {"t": "row_number() over ()"}}, "derive.t: WindowFunction is not for single rows"),
        ({"derive": {"t": "(select 1)"}}, "derive.t: ScalarSubquery is not for single rows"),
        ({"derive": {"t": "n in (select 1)"}}, "derive.t: "),
        ({"derive": {"t": "exists (select 1)"}}, "derive.t: Exists is not for single rows"),
        ({"derive": {"t": "interval '1 day'"}}, "derive.t: it gives month_day_nano_interval, which a table does not"),
        ({"derive": {"t": "null"}}, "derive.t: it gives null, which a table does not hold; cast it"),
        ({"derive": {"t": "cast('x' as int)"}}, "derive.t: Cannot cast string 'x' to value of Int32 type"),
        ({"columns": {"exclude": ["addres"]}}, "columns.exclude: no schema of its records has 'addres'; did you"),
        ({"columns": {"include": ["items.prize"]}}, "columns.include: no schema of its records has 'items.prize';"),
        ({"columns": {"include": ["n"], "exclude": ["n"]}}, "it leaves no column; include one, or derive one"),
        ({"rename": {"n": "userid"}}, "two columns would be called 'userId'; rename or exclude one of them"),
        ({"rename": {"note": "x"}}, "rename: no schema of its records has a column 'note'; did you mean 'notes'?"),
        ({"rename": {"n": "m"}, "columns": {"exclude": ["n"]}}, "rename: 'n' is not among the columns that stay"),
        ({"cast": {"n": "long"}, "derive": {"n": "n + 1"}}, "cast: 'n' is derived; say it in its expression"),
        ({"cast": {"items": "string"}}, "cast: 'items' is list"),
        ({"cast": {"n": "timestamp"}}, "cast: 'n' is a number, of which unit is not known"),
        ({"flatten": ["items"]}, "flatten: 'items' is list"),
        ({"sample": {"share": "1 %", "by": "userid"}}, "sample.by: no schema of its records has 'userid'; did you"),
        ({"sample": {"share": "1 %", "by": "address"}}, "sample.by: 'address' is struct"),
    ],
)  # fmt: skip
def test_a_spec_that_does_not_fit_the_schema_is_refused_with_a_sentence(
    section: Mapping[str, Any], message: str
) -> None:
    assert refused(**section).startswith(message)


def test_a_decimal_is_no_timestamp_either() -> None:
    rows = pa.table({"price": pa.array([1], pa.decimal128(9, 2))})
    with pytest.raises(SpecError, match="'price' is a number, of which unit is not known"):
        shaped(rows, cast={"price": "timestamp"})


@pytest.mark.parametrize(
    ("section", "message"),
    [
        ({"sample": {"share": "150 %", "by": "id"}}, "'150 %' is no share; write '1 %', or a number above 0"),
        ({"sample": {"share": True, "by": "id"}}, "True is no share"),
        ({"sample": {"share": "0", "by": "id"}}, "'0' is no share"),
        ({"cast": {"id": "lon"}}, "cast.id: there is no type 'lon'; did you mean 'long'?"),
        ({"cast": {"id": "decimal(50, 2)"}}, "cast.id: there is no type 'decimal(50, 2)'"),
        ({"rename": {"id": "a b"}}, "'a b' is no name of a column"),
        ({"derive": {"1x": "id"}}, "'1x' is no name of a column"),
        ({"wher": "id"}, "unknown key 'wher'; did you mean 'where'?"),
        ({}, "it says nothing; take it out"),
    ],
)  # fmt: skip
def test_the_file_is_checked_where_it_is_read(tmp_path: Any, section: Mapping[str, Any], message: str) -> None:
    raw = config(tmp_path).model_dump(mode="json", exclude_unset=True)
    raw["pipelines"]["clicks"]["specs"] = {"Event": section}
    with pytest.raises(ConfigError) as raised:
        checked(raw, "pipelines.yaml")
    assert "pipelines.clicks.specs.Event" in str(raised.value)
    assert message in str(raised.value)


def test_a_name_goes_before_patterns_of_which_the_first_counts() -> None:
    specs = (Spec("shop.*"), Spec("*"), Spec("shop.Click"))
    chosen = [spec_of(specs, name) for name in ("shop.Click", "shop.View", "Other", None)]
    assert [one and one.name for one in chosen] == ["shop.Click", "shop.*", "*", None]


def test_the_fingerprint_is_of_what_specs_say() -> None:
    one, other = (EventSpec.model_validate({"where": text}).spec("a") for text in ("n > 1", "n > 2"))
    assert fingerprint(to_json((one,))) == fingerprint(to_json((one,))) != fingerprint(to_json((other,)))
    assert fingerprint({}) == 0
    assert fingerprint(to_json((one, other))) < 2**63
    share = EventSpec.model_validate({"sample": {"share": 0.01, "by": "a"}})
    assert share.sample is not None
    assert share.sample.share == "1 %"
    assert json.loads(json.dumps(to_json((share.spec("a"),))))["a"] == {"sample": {"share": "1/100", "by": "a"}}


def record(*fields: tuple[str, Any], name: str = "Click") -> str:
    return json.dumps({"type": "record", "name": name, "fields": [{"name": n, "type": kind} for n, kind in fields]})


def test_older_schemas_wait_for_the_one_that_has_what_the_spec_names() -> None:
    plan = SchemaPlan(pa.schema([]), specs=(Spec("Click", where="country = 'DE'"),))
    plan = plan.extend(1, record(("n", "int")))
    assert isinstance(plan.schemas[1], RejectedSchema)
    assert "no schema of its records has a column 'country'" in plan.schemas[1].reason
    plan = plan.extend(2, record(("n", "long"), ("country", "string")))
    assert all(isinstance(one, WriterSchema) for one in plan.schemas.values())
    assert plan.columns.field("n").type == pa.int64()


def test_a_schema_that_breaks_the_spec_is_rejected_alone() -> None:
    plan = SchemaPlan(pa.schema([]), specs=(Spec("Click", derive=(("n2", "n * 2"),)),)).extend(1, record(("n", "int")))
    plan = plan.extend(2, record(("n", "int"), ("n2", "string")))
    assert isinstance(plan.schemas[1], WriterSchema), "the derived column takes the place of the field"
    plan = SchemaPlan(pa.schema([]), specs=(Spec("Click", rename=(("n", "m"),)),)).extend(1, record(("n", "int")))
    plan = plan.extend(2, record(("n", "int"), ("m", "string")))
    assert isinstance(plan.schemas[1], WriterSchema)
    assert isinstance(plan.schemas[2], RejectedSchema)
    assert "spec 'Click': two columns would be called 'm'" in plan.schemas[2].reason


def test_types_without_a_spec_are_as_they_were() -> None:
    specs = (Spec("Click", where="n > 1"),)
    text = record(("n", "int"), name="View")
    assert (
        SchemaPlan(pa.schema([]), specs=specs).extend(1, text).schemas
        == SchemaPlan(pa.schema([])).extend(1, text).schemas
    )


def test_the_page_lists_the_functions() -> None:
    page = (Path(__file__).parents[2] / "docs" / "SPECS.md").read_text()
    assert [name for name in sorted(ALLOWED) if f"`{name}`" not in page] == []


def test_schema_plan_says_what_a_schema_does_to_the_spec(tmp_path: Path) -> None:
    (tmp_path / "first.avsc").write_text(record(("id", "long"), ("at", TIME), ("email", "string")))
    raw = config(tmp_path).model_dump(mode="json", exclude_unset=True)
    raw["registry"] = {"files": {1: str(tmp_path / "first.avsc")}}
    click = {"columns": {"exclude": ["email"]}, "derive": {"half": "id / 2"}}
    raw["pipelines"]["clicks"]["specs"] = {"Click": click, "Vis*": {"where": "id > 0"}}
    (tmp_path / "headrace.yaml").write_text(json.dumps(raw))

    def asked(text: str) -> tuple[int, str]:
        (tmp_path / "next.avsc").write_text(text)
        words = ["schema", "plan", str(tmp_path / "headrace.yaml"), "--file", str(tmp_path / "next.avsc")]
        done = CliRunner(env={"COLUMNS": "200"}).invoke(app, words)
        return done.exit_code, done.stdout

    code, said = asked(record(("id", "long"), ("at", TIME), ("email", "string"), ("city", "string")))
    assert code == 0
    assert "spec     Click" in said
    assert "the table gets city (string); left out or renamed: email" in said
    code, said = asked(record(("id", "string"), ("at", TIME)))
    assert code == 1
    assert "field 'id' is string, but column 'id' holds int64" in said
    code, said = asked(record(("id", "long"), ("at", TIME), ("Half", "int")))
    assert code == 1
    assert "spec 'Click': two columns would be called 'Half'" in said
    assert "Keep what the spec names, or change the spec before the schema is registered" in said
    code, said = asked(record(("id", "long"), name="Visit"))
    assert code == 1, "the first schema of a record that a spec shapes"
    assert "it lacks 'at', the event time, which has no default. Its records are quarantined" in said


def validated(tmp_path: Path, values: int = 9, **specs: Any) -> dict[str, str]:
    """What `validate` says of the schema and of a sample, by check."""
    settings, schemas = config(tmp_path, specs=specs), Schemas({1: EVENT}, [1])
    walk = open_local_pipeline("clicks", settings, schemas)
    found = [*source_checks._specs("clicks", settings.pipelines["clicks"], walk.plan)]
    found += source_checks.sample_findings(walk, records([event(n) for n in range(values)]), NOW)
    return {one.check: f"{one.status} {one.message}" for one in found}


def test_validate_says_what_a_start_would_say_of_specs(tmp_path: Path) -> None:
    found = validated(tmp_path, Event={"columns": {"exclude": ["at"]}, "where": "id > 2"})
    assert found["specs"] == "ok Event: the registered schemas fit"
    assert found["event_time"].startswith("ok at, timestamp: 2026-11-20 11:52:00 UTC to"), "of what stays"
    assert found["decode"] == "ok 9 of 9 values with a header are decoded"
    assert validated(tmp_path, Evnt={"where": "id > 2"})["specs"] == "warning no known schema is of Evnt"
    wrong = validated(tmp_path, Event={"where": "idd > 2"})["specs"]
    assert wrong.startswith("failed pipelines.clicks.specs.Event: where: no schema of its records has a column 'idd'")
    assert validated(tmp_path, Event={"where": "id < 0"})["event_time"].endswith("event specs leave out every record")


def test_preview_shows_what_is_filtered_and_why(tmp_path: Path) -> None:
    walk = open_local_pipeline(
        "clicks", config(tmp_path, specs={"Event": {"where": "id <> 1"}}), Schemas({1: EVENT}, [1])
    )
    shown = [(one["outcome"], one.get("reason")) for one in describe_rows(walk, records([event(n) for n in range(3)]))]
    assert shown == [("row", None), ("filtered", "where of spec 'Event'"), ("row", None)]


SECRET_ROW = {
    "s": "4711'\nzoe@secret.org", "hex": b"zoe@secret.org\xff", "a": 2**63 - 4711, "i": 2**31 - 4711, "f": 4711e300,
    "d": Decimal("4711" * 9), "day": date(4711, 4, 7),
}  # fmt: skip
SECRET_COLUMNS = pa.schema(
    [("s", pa.string()), ("hex", pa.binary()), ("a", pa.int64()), ("i", pa.int32()), ("f", pa.float64()),
     ("d", pa.decimal128(38, 2)), ("day", pa.date32())]
)  # fmt: skip
FAILING = [
    *(f"CAST(s AS {kind})" for kind in ("BIGINT", "INT", "DOUBLE", "DATE", "TIMESTAMP", "BOOLEAN", "DECIMAL(9, 2)")),
    "to_timestamp(s)", "to_timestamp(s, '%Y')", "to_date(s)", "CAST(hex AS VARCHAR)", "decode(s, 'hex')",
    "CAST(a AS INT)", "CAST(f AS BIGINT)", "CAST(f AS DECIMAL(9, 2))", "CAST(d AS DECIMAL(9, 2))", "CAST(d AS BIGINT)",
    "d * d", "to_timestamp_seconds(a)", "to_timestamp(a)", "make_date(i, i, i)", "chr(a)", "round(f, a)",
    "abs(i) + 1 / (i - i)", "day + INTERVAL '9999 years'",
]  # fmt: skip


@pytest.mark.parametrize("sql", FAILING)
@pytest.mark.parametrize("others", [{}, {"n": "a"}], ids=["alone", "beside another"])
def test_why_an_expression_fails_quotes_no_value(sql: str, others: Mapping[str, str]) -> None:
    rows = pa.Table.from_pylist([SECRET_ROW], SECRET_COLUMNS)
    (reason,) = shaped(rows, derive={"x": sql, **others}).failures.values()
    assert reason.startswith("derive.x: ")
    assert len(reason) > len("derive.x: ")
    for piece in ("zoe", "secret", "4711", *(str(value) for value in SECRET_ROW.values())):
        assert piece not in reason
    assert not re.search(r"\d{5}", reason)


def test_a_cast_that_fails_quotes_no_value() -> None:
    rows = pa.Table.from_pylist([SECRET_ROW], SECRET_COLUMNS)
    assert shaped(rows, cast={"s": "long"}).failures == {0: "cast.s: the value is no long"}
    assert shaped(rows, cast={"f": "int"}).failures == {0: "cast.f: the value is no int"}
