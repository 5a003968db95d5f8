"""`headrace schema plan`: what it says of a schema is what the writer then does."""

import json
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
import yaml
from typer.testing import CliRunner

from headrace import bucketers
from headrace.writer.cli.main import app
from headrace.writer.columns.schema_plan import RejectedSchema, SchemaPlan
from headrace.writer.config.loader import load
from headrace.writer.config.sections.table import layout
from headrace.writer.core.errors import HeadraceError
from headrace.writer.maintenance.local_pipeline import open_local_pipeline
from headrace.writer.schemas.registry import source
from headrace.writer.table.factory import main_table
from tests.support.sample_records import TIME
from tests.support.table_formats import delta_table

POINT = {"type": "record", "name": "P", "fields": [{"name": "x", "type": "int"}]}
FIRST = {
    "id": "long", "at": TIME, "n": "int", "user": ["null", "string"], "spot": POINT,
    "body": ["int", "string"], "tags": {"type": "array", "items": "string"},
}  # fmt: skip


def schema(fields: dict[str, Any], **more: dict[str, Any]) -> str:
    listed = [{"name": name, "type": kind, **more.get(name, {})} for name, kind in fields.items()]
    return json.dumps({"type": "record", "name": "Event", "fields": listed})


@pytest.fixture
def site(tmp_path: Path) -> Path:
    """A configuration whose only registered schema is FIRST, with id 1."""
    (tmp_path / "first.avsc").write_text(schema(FIRST))
    clicks = {"topics": ["clicks"], "table": {"location": str(tmp_path / "lake")}, "event_time": {"field": "at"}}
    content = {
        "kafka": {"bootstrap_servers": "127.0.0.1:1"}, "registry": {"files": {1: str(tmp_path / "first.avsc")}},
        "checkpoints": str(tmp_path / "checkpoints"), "pipelines": {"clicks": clicks},
    }  # fmt: skip
    (tmp_path / "headrace.yaml").write_text(yaml.safe_dump(content))
    return tmp_path


def asked(site: Path, *options: str, text: str | None = None) -> tuple[int, str]:
    if text is not None:
        (site / "next.avsc").write_text(text)
        options = ("--file", str(site / "next.avsc"), *options)
    words = ["schema", "plan", str(site / "headrace.yaml"), *options]
    told = CliRunner(env={"COLUMNS": "100"}).invoke(app, words)
    if isinstance(told.exception, HeadraceError):  # which `main` turns into its sentence and exit code
        return told.exception.exit_code, str(told.exception)
    return told.exit_code, told.stdout


def effects(site: Path, text: str) -> list[tuple[Any, ...]]:
    code, said = asked(site, "--json", text=text)
    found = json.loads(said)
    assert (code, found["compatible"], found["outcome"]) == (0, True, "row")
    return [tuple(effect.values()) for effect in found["effects"]]


def test_each_thing_that_a_schema_does_is_said_at_its_place(site):
    point = {"type": "record", "name": "P", "fields": [
        {"name": "left", "type": "long", "aliases": ["x"]}, {"name": "y", "type": "int", "default": 7},
    ]}  # fmt: skip
    second = {
        "id": "int", "at": TIME, "n": "double", "account": "string", "spot": point,
        "body": ["string", "long", "boolean"], "country": "string",
    }  # fmt: skip
    text = schema(second, account={"aliases": ["user"]}, country={"default": "unknown"})
    assert effects(site, text) == [
        ("widens", "n", "int32", "double", None),
        ("widens", "spot.x", "int32", "int64", None),
        ("adds", "spot.y", None, "int32", 7),
        ("widens", "body.member0", "int32", "int64", None),
        ("adds", "body.member2", None, "bool", None),
        ("adds", "country", None, "string", "unknown"),
        ("casts", "id", "int32", "int64", None),
        ("renames", "user", "account", None, None),
        ("renames", "spot.x", "left", None, None),
        ("lacks", "tags", None, "list<string>", None),
    ]


def test_a_schema_that_is_there_already_does_nothing(site):
    assert effects(site, schema(FIRST)) == []
    code, said = asked(site, text=schema(FIRST))
    assert code == 0
    assert "It fills the columns as they are.\n  decoder  native\nEvery record of it becomes a row.\n" in said


def test_a_registered_schema_is_looked_at_as_the_next_one(site):
    code, said = asked(site, "--id", "1", "--json")
    assert code == 0
    assert (json.loads(said)["registered"], json.loads(said)["columns"]) == (0, 0)


def test_the_columns_of_the_table_decide_what_fits(site):
    config = load(site / "headrace.yaml").pipelines["clicks"]
    columns = bucketers.build(config.bucket).columns
    table = delta_table(str(site / "lake"), "clicks")
    named = pa.schema([(name, pa.string()) for name in ("n", *columns)])
    table.create(named, columns, layout(config.bucket))
    code, said = asked(site, "--id", "1")
    assert code == 1
    assert "field 'n' is int32, but column 'n' holds string. Its records become dead letters" in " ".join(said.split())


def test_records_without_an_event_time_would_be_quarantined(site):
    without = {name: kind for name, kind in FIRST.items() if name != "at"}
    code, said = asked(site, "--json", text=schema(without))
    found = json.loads(said)
    assert (code, found["compatible"], found["outcome"]) == (1, False, "quarantined")
    assert found["reason"] == "it lacks 'at', the event time, which has no default"
    assert "Its records are quarantined" in " ".join(asked(site, text=schema(without))[1].split())


def test_a_schema_for_the_slow_decoder_is_told(site):
    kinds = {**FIRST, "side": [POINT | {"name": "Left"}, POINT | {"name": "Right"}]}
    assert "single, one record at a time" in asked(site, text=schema(kinds))[1]


@pytest.mark.parametrize(
    ("options", "sentence"),
    [
        ((), "name one schema: --id N for one of the registry, or --file schema.avsc"),
        (("--id", "1", "--file", "a.avsc"), "name one schema"),
        (("--file", "none.avsc"), "cannot read none.avsc: No such file or directory"),
        (("--id", "1", "--pipeline", "click"), "did you mean 'clicks'?"),
    ],
)
def test_a_missing_option_is_named(site, options, sentence):
    code, said = asked(site, *options)
    assert code == 2
    assert sentence in said


def test_a_schema_that_is_not_there_is_said(site):
    assert asked(site, "--id", "9") == (1, "schema id 9 is not in registry.files")


def in_iceberg(site: Path, *, existing: bool, schemas: dict[int, str]) -> None:
    """Make the table Iceberg's; `existing`: it is there, with the columns of FIRST."""
    content = yaml.safe_load((site / "headrace.yaml").read_text())
    content["catalog"] = {"type": "sql", "uri": f"sqlite:///{site}/catalog.db"}
    content["pipelines"]["clicks"]["table"]["format"] = "iceberg"
    for number, text in schemas.items():
        (site / f"{number}.avsc").write_text(text)
        content["registry"]["files"][number] = str(site / f"{number}.avsc")
    (site / "headrace.yaml").write_text(yaml.safe_dump(content))
    if existing:
        config = load(site / "headrace.yaml")
        columns, clicks = (
            open_local_pipeline("clicks", config, source(config.registry)).plan.columns,
            config.pipelines["clicks"],
        )
        buckets = bucketers.build(clicks.bucket).columns
        named = pa.schema([*columns, *((name, pa.string()) for name in buckets)])
        main_table("clicks", config).create(named, buckets, layout(clicks.bucket))


@pytest.mark.parametrize("existing", [False, True])
def test_an_iceberg_table_widens_less(site: Path, existing: bool):
    money = {"type": "bytes", "logicalType": "decimal", "precision": 9, "scale": 2}
    first = {**FIRST, "price": money, "share": "float"}
    in_iceberg(site, existing=existing, schemas={1: schema(first), 2: schema({**first, "n": "double"})})
    spot = {"type": "record", "name": "P", "fields": [{"name": "x", "type": "long"}]}
    wider = {**first, "n": "long", "spot": spot, "share": "double", "price": {**money, "precision": 12}}
    assert [one[:4] for one in effects(site, schema(wider))] == [
        ("widens", "n", "int32", "int64"), ("widens", "spot.x", "int32", "int64"),
        ("widens", "price", "decimal128(9, 2)", "decimal128(12, 2)"), ("widens", "share", "float", "double"),
    ]  # fmt: skip
    doubled = {"type": "record", "name": "P", "fields": [{"name": "x", "type": "double"}]}
    for change, reason in (
        ({"n": "double"}, "field 'n' is double, but column 'n' holds int32, which Iceberg does not widen to double"),
        ({"spot": doubled}, "which Iceberg does not widen to double"),
        ({"price": {**money, "precision": 12, "scale": 4}}, "which Iceberg does not widen to decimal128(12, 4)"),
        ({"_file": "string"}, "field '_file' has a name that headrace keeps for itself; rename it"),
    ):
        code, said = asked(site, "--json", text=schema({**first, **change}))
        found = json.loads(said)
        assert (code, found["compatible"], found["outcome"]) == (1, False, "dead_letter")
        assert reason in found["reason"]
    options = ["validate", str(site / "headrace.yaml"), "--offline", "--json"]
    said = {one["check"]: one for one in json.loads(CliRunner().invoke(app, options).stdout)["findings"]}
    assert "which Iceberg does not widen to double" in said["schemas"]["message"]
    assert said["schemas"]["fix"] == "Its records become dead letters."


def test_all_that_is_wrong_with_a_schema_is_named(site):
    inner = {"type": "record", "name": "P", "fields": [{"name": "x", "type": "string"}, {"name": "X", "type": "int"}]}
    wrong = {"id": "boolean", "n": "string", "spot": inner, "tags": {"type": "array", "items": "int"}, "USER": "string"}
    code, said = asked(site, "--json", text=schema(wrong))
    found = json.loads(said)
    assert (code, found["outcome"], found["reason"]) == (1, "dead_letter", found["reasons"][0])
    named = ["'USER' differs", "'id' is bool", "'n' is string", "'spot.X' differs", "'spot.x' is string"]
    named += ["'tags.element' is int32", "it lacks 'at', the event time"]
    assert len(found["reasons"]) == len(named)
    for part in named:
        assert sum(part in reason for reason in found["reasons"]) == 1, part
    screen = " ".join(asked(site, text=schema(wrong))[1].split())
    assert all(part in screen for part in named)
    assert screen.count("Its records become dead letters") == 1


def test_all_mistakes_of_a_spec_are_named(site):
    file = site / "headrace.yaml"
    content = yaml.safe_load(file.read_text())
    spec = {"where": "nn > 1", "derive": {"twice": "idd * 2", "half": "id / 2"}, "cast": {"usr": "string"}}
    content["pipelines"]["clicks"]["specs"] = {"Event": spec}
    file.write_text(yaml.safe_dump(content))
    _, said = asked(site, "--json", text=schema({**FIRST, "country": "string"}))
    reasons = json.loads(said)["reasons"]
    assert sorted(reason.split(": ")[1] for reason in reasons) == ["cast", "derive.twice", "where"]


def test_each_conflict_that_is_noted_is_one_that_is_raised():
    """What the command lists first is why the writer rejects the schema."""
    plan = SchemaPlan(pa.schema([])).extend(1, schema(FIRST))
    kinds = ["boolean", "string", "double", "bytes", POINT, {"type": "map", "values": "int"}, ["null", "long"]]
    for name in FIRST:
        for kind in kinds:
            text = schema({**FIRST, name: kind})
            planned = plan.extend(2, text).schemas[2]
            problems = plan.find_problems(text)
            if isinstance(planned, RejectedSchema):
                assert planned.reason == f"schema id 2: {problems[0]}"
            else:
                assert problems == []
