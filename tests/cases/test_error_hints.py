"""Hints: what an error proposes in the place of a wrong name passes the check that made the proposal."""

import ast
import json
import re
from collections.abc import Callable
from datetime import timedelta
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from pydantic import ValidationError

from headrace import bucketers, writer
from headrace.bucketers import factory
from headrace.bucketers.arrow import fields_of
from headrace.bucketers.timestamps import UNITS, event_time, find_refusal
from headrace.writer.batch.bucketing import Clock
from headrace.writer.config.sections.kafka_client import _DENIED, _check_options
from headrace.writer.core.errors import ConfigError
from headrace.writer.maintenance.deletion.row_keys import Keys, RowFinder, RowMatch
from headrace.writer.maintenance.path_release import ReleaseRequest, choose_paths
from headrace.writer.preflight.checks.sample_checks import find_misplaced_types
from headrace.writer.privacy.path_policies import PathPolicy
from headrace.writer.privacy.policy import CLEAR, Action
from headrace.writer.specs.expressions import ALLOWED, Expressions, SqlExpression
from headrace.writer.specs.spec import Spec, SpecError
from headrace.writer.specs.step import cast_type, compile_step, digest_sql
from tests.support.sample_records import EVENT, NOW, config, records, value
from tests.support.validation import sample_findings

TIMESTAMP = pa.timestamp("us", "UTC")
PLACE = pa.struct([("at", TIMESTAMP), ("name", pa.string()), ("raw", pa.binary())])
COLUMNS = pa.schema(
    [
        ("at", TIMESTAMP), ("att", pa.list_(pa.int64())), ("at_s", pa.float64()), ("at_ms", pa.int64()),
        ("a", pa.bool_()), ("day", pa.date32()), ("text", pa.string()), ("place", PLACE), ("raw", pa.binary()),
        ("price", pa.decimal128(9, 2)), ("order", pa.int64()), ("user-id", pa.string()), ("select", pa.string()),
        ("User", pa.string()), ("case", pa.int64()),
    ]
)  # fmt: skip
ROWS = COLUMNS.empty_table()
WRONG = [
    "", "at_", "attt", "plce", "place.a", "place.att", "place.ra", "plac.name", "rw", "texts", "usr-id", "slect",
    "ordr", "cse",
]  # fmt: skip
PROPOSED = re.compile(r"did you mean '(.+?)'\?|there is ('.*')|known here: (.*)")


def proposals(error: BaseException) -> list[str]:
    """Return the names that an error's sentence proposes."""
    match = PROPOSED.search(str(error))
    if match is None:
        return []
    one, several, known = match.groups()
    if one is not None:
        return [one]
    return (
        re.findall(r"'(.*?)'(?:, |$)", several)
        if several is not None
        else known.splitlines()[0].partition(";")[0].split(", ")
    )


def check_hint(check: Callable[[str], object], wrong: str, *refused_by: type[Exception]) -> list[str]:
    """Let a check refuse a name, and take what it proposes."""
    with pytest.raises(refused_by) as error:
        check(wrong)
    names = proposals(error.value)
    for name in names:
        check(name)
    return names


@pytest.mark.parametrize("wrong", WRONG)
@pytest.mark.parametrize("unit", [*UNITS])
def test_a_field_that_is_proposed_as_an_event_time_is_one(unit: str, wrong: str) -> None:
    check_hint(lambda field: event_time(ROWS, field, unit), wrong, ValueError)


@pytest.mark.parametrize("unit", [*UNITS])
def test_a_refusal_of_a_type_says_a_unit_that_goes_with_it(unit: str) -> None:
    for path, kind in fields_of(COLUMNS):
        refusal = find_refusal(kind, unit)
        if not refusal:
            event_time(ROWS, path, unit)
            continue
        with pytest.raises(ValueError, match=re.escape(refusal)):
            event_time(ROWS, path, unit)
        if (better := re.search(r"declare '?(\w+)'?", refusal)) is not None:
            event_time(ROWS, path, better[1])


@pytest.mark.parametrize("wrong", WRONG)
def test_a_field_that_is_proposed_for_buckets_clocks_samples_and_deletes_is_taken(wrong: str) -> None:
    times = pa.array([], TIMESTAMP)
    topics = pa.array([], pa.string())
    check_hint(lambda field: bucketers.Field(field).assign(ROWS, times), wrong, ValueError)
    clock_field = lambda field: Clock(None, field, ("1",), timedelta(hours=1)).owns(ROWS, topics)  # noqa: E731
    check_hint(clock_field, wrong, ValueError)
    check_hint(lambda field: digest_sql(field, COLUMNS), wrong, SpecError)
    check_hint(lambda field: RowFinder(Keys((RowMatch(field, ()),)), COLUMNS), wrong, ConfigError)


@pytest.mark.parametrize("wrong", ["Feld", "Field_", "buildd", "TYPE", "import_modul"])
def test_a_class_that_is_proposed_as_a_bucketer_can_be_called(wrong: str) -> None:
    with pytest.raises(ValueError, match="has no class") as error:
        bucketers.build({"type": f"headrace.bucketers.factory:{wrong}"})
    assert all(isinstance(getattr(factory, name), type) for name in proposals(error.value))


@pytest.mark.parametrize("key", ["rename", "cast", "flatten"])
@pytest.mark.parametrize("kind", ["string", "timestamp", "boolean", "int", "date", "bytes", "decimal(10, 2)"])
@pytest.mark.parametrize("wrong", ["att_", "plces", "a_", "price_", "odrer", "rawr"])
def test_a_column_that_a_spec_proposes_can_stand_in_the_key(key: str, kind: str, wrong: str) -> None:
    def check(name: str) -> object:
        told: Any = {"rename": (("text", "words"),), "cast": (("text", kind),), "flatten": ("place",)}
        told[key] = {"rename": ((name, "other"),), "cast": ((name, kind),), "flatten": (name,)}[key]
        return compile_step(Spec("*", exclude=("order", "at_s"), derive=(("a2", "1"),), **{key: told[key]}), COLUMNS)

    check_hint(check, wrong, SpecError)


@pytest.mark.parametrize("key", ["include", "exclude"])
@pytest.mark.parametrize("wrong", [name for name in WRONG if name])
def test_a_path_that_a_spec_proposes_is_there(key: str, wrong: str) -> None:
    check_hint(lambda path: compile_step(Spec("*", **{key: (path,)}), COLUMNS), wrong, SpecError)  # type: ignore[arg-type]


@pytest.mark.parametrize("wrong", ["decimal", "decimals", "strin", "timestamps", "integer", "x"])
def test_a_type_that_is_proposed_for_a_cast_is_one(wrong: str) -> None:
    assert check_hint(lambda kind: cast_type("price", kind), wrong, SpecError)


@pytest.mark.parametrize("wrong", ["att_", "usr", "slect", "ordr", "cas", "user_id", "tex"])
def test_a_column_that_an_expression_proposes_is_read_by_it(wrong: str) -> None:
    check_hint(lambda name: Expressions(COLUMNS, [SqlExpression("where", f"{name} IS NULL")]), wrong, SpecError)


def is_function(name: str) -> bool:
    try:
        Expressions(COLUMNS, [SqlExpression("where", f"{name}(text) = 1")])
    except SpecError as error:
        return "there is no function" not in str(error)
    return True


def test_a_function_that_an_expression_proposes_is_one() -> None:
    for name in sorted(ALLOWED):
        wrong = f"{name}_x" if name.isidentifier() else "zzz"
        with pytest.raises(SpecError) as error:
            Expressions(COLUMNS, [SqlExpression("where", f"{wrong}(text) = 1")])
        assert all(proposal.isidentifier() and is_function(proposal) for proposal in proposals(error.value))


@pytest.mark.parametrize("wrong", [*(f"{name}x" for name in _DENIED), "fetch.min.byte", "x"])
def test_an_option_of_kafka_that_is_proposed_can_be_set(wrong: str) -> None:
    check_hint(lambda name: _check_options({name: "1"}), wrong, ValueError)


def test_a_protected_path_that_is_proposed_can_be_released() -> None:
    protected = {
        "Click": {
            ("user", "mail"): PathPolicy(Action("drop"), "tag PII"),
            ("user", "name"): PathPolicy(CLEAR, "released"),
        }
    }
    for wrong in ("user.nam", "user.mai", "x"):
        check_hint(
            lambda path: choose_paths(ReleaseRequest("Click", [path], "me", "why"), protected), wrong, ConfigError
        )
    check_hint(
        lambda record: choose_paths(ReleaseRequest(record, ["user.mail"], "me", "why"), protected), "Clik", ConfigError
    )


@pytest.mark.parametrize("name", [".file", "_file", "a.b", ".", "._pos", "_kafka_partition", "a."])
def test_a_name_that_is_proposed_for_a_column_of_an_iceberg_table_is_taken(tmp_path: Path, name: str) -> None:
    place = {"location": str(tmp_path / "lake" / "clicks"), "format": "iceberg"}

    def check(column: str) -> object:
        return config(tmp_path, table=place, columns={"header_columns": {column: "trace"}})

    with pytest.raises(ValidationError) as error:
        check(name)
    (proposal,) = re.findall(r"(?:such as|use) '([^']+)'", str(error.value))
    check(proposal)


def misplaced(unit: str, kind: object = "long") -> dict[str, Any]:
    return {**EVENT, "fields": [*EVENT["fields"], {"name": "ts", "type": kind, "logicalType": f"timestamp-{unit}"}]}


def test_a_logical_type_beside_the_type_is_named_and_the_field_is_not_proposed(tmp_path: Path) -> None:
    schema = misplaced("micros")
    batch = records([value(1, schema, {"id": 1, "at": NOW, "note": None, "ts": int(NOW.timestamp() * 1e6)})])
    rule = {"field": "ts", "unit": "logical"}
    finding = sample_findings(batch, tmp_path, {1: schema}, event_time=rule)["event_time"]
    assert "logicalType 'timestamp-micros' beside the type instead of in it" in finding.message
    assert finding.fix == "Set event_time.unit to us, or event_time.field to one that is: at."
    fixed = sample_findings(batch, tmp_path / "fixed", {1: schema}, event_time={**rule, "unit": "us"})["event_time"]
    assert fixed.status == "ok"
    other = sample_findings(batch, tmp_path / "other", {1: schema}, event_time={**rule, "field": "at"})["event_time"]
    assert other.status == "ok"


def test_only_a_plain_long_has_a_misplaced_logical_type() -> None:
    inner = {"type": "record", "name": "Inner", "fields": misplaced("nanos")["fields"]}
    nested = {**EVENT, "fields": [{"name": "inner", "type": ["null", inner]}]}
    assert list(find_misplaced_types(json.dumps(nested), "inner.ts")) == [("timestamp-nanos", "ns")]
    assert list(find_misplaced_types(json.dumps(misplaced("millis", ["null", "long"])), "ts")) == [
        ("timestamp-millis", "ms")
    ]
    for kind in ("string", "int", {"type": "long", "logicalType": "timestamp-millis"}):
        assert not list(find_misplaced_types(json.dumps(misplaced("millis", kind)), "ts"))
    assert not list(find_misplaced_types('"long"', "ts"))


def test_a_misplaced_logical_type_is_named_in_a_record_that_is_defined_elsewhere() -> None:
    inner = {"type": "record", "name": "Inner", "fields": misplaced("nanos")["fields"]}
    nested = {**EVENT, "fields": [{"name": "first", "type": inner}, {"name": "second", "type": ["null", "Inner"]}]}
    assert list(find_misplaced_types(json.dumps(nested), "second.ts")) == [("timestamp-nanos", "ns")]
    assert not list(find_misplaced_types(json.dumps(nested), "ts"))


# Where names are proposed, and by which test of this file; `-`: by one of the place's own, or for any name alike.
PLACES = {
    "bucketers/arrow.py": "an_event_time", "bucketers/factory.py": "bucketer", "writer/specs/step.py": "spec, samples",
    "writer/specs/projection.py": "path_that_a_spec",
    "writer/specs/expressions.py": "expression", "writer/config/sections/kafka_client.py": "kafka",
    "writer/maintenance/path_release.py": "released",
    "autoscaler/decision/policy.py": "-",
    # What is proposed is compared with the same set that the check looks into.
    "writer/config/base.py": "-", "writer/config/sections/registry.py": "-", "writer/config/pipeline.py": "-",
    "writer/config/pipelines.py": "-", "writer/config/sections/routing.py": "-",
    "writer/preflight/testing/case.py": "-",
    "writer/preflight/testing/avro_json.py": "-", "writer/preflight/testing/comparison.py": "-",
    "writer/hooks/dispatcher.py": "-", "writer/clients/kafka.py": "-",
    "writer/privacy/protected_schema.py": "-",
}  # fmt: skip

# The functions that propose names.
PROPOSALS = {"suggest_name", "did_you_mean"}


def test_every_place_that_proposes_names_is_among_these() -> None:
    root = Path(writer.__file__).parent.parent
    calls = set()
    for package in ("bucketers", "writer", "recovery", "autoscaler"):
        for path in root.joinpath(package).rglob("*.py"):
            text = path.read_text()
            # Most modules name neither, and need not be parsed.
            if not any(function in text for function in PROPOSALS):
                continue
            names = (
                node.func.id
                for node in ast.walk(ast.parse(text))
                if isinstance(node, ast.Call) and isinstance(node.func, ast.Name)
            )
            if PROPOSALS & set(names):
                calls.add(str(path.relative_to(root)))
    assert calls == set(PLACES)
