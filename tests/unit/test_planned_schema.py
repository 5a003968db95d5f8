"""What `headrace schema plan` takes a schema from, where values are JSON or raw."""

import json
from pathlib import Path
from typing import Any

import pytest
import yaml

from headrace.writer.core.errors import ConfigError
from headrace.writer.preflight.schema_effects import Verdict, plan_schema
from tests.support.sample_records import EVENT, config

DECLARED: dict[str, Any] = {"id": "long", "at": "timestamp", "user": {"name": "string"}}


def plan(root: Path, file: str = "", text: str = "", **settings: Any) -> Verdict:
    """Plan the schema of a file with a text; without one, the schema 1 of the registry."""
    settings_ = config(root, **{"formats": "json", "columns": {"declared": DECLARED}, **settings})
    if not file:
        return plan_schema(settings_, "clicks", schema_id=1, file=None)
    (root / file).write_text(text)
    return plan_schema(settings_, "clicks", schema_id=None, file=root / file)


def effects(verdict: Verdict) -> list[tuple[str, str, str | None]]:
    assert verdict.reason is None, verdict.reason
    return [(effect.effect, effect.column, effect.now) for effect in verdict.effects]


def test_columns_to_declare_are_planned_on_top_of_those_that_are(tmp_path: Path) -> None:
    declared = {**DECLARED, "user": {"name": "string", "age": "int"}, "price": "decimal(5, 2)"}
    assert effects(plan(tmp_path, "columns.yaml", yaml.safe_dump(declared))) == [
        ("adds", "user.age", "int32"),
        ("adds", "price", "decimal128(5, 2)"),
    ]


def test_a_declaration_without_a_column_leaves_it_null(tmp_path: Path) -> None:
    verdict = plan(tmp_path, "columns.yml", yaml.safe_dump({"id": "long", "at": "timestamp"}))
    assert [(effect, column) for effect, column, _ in effects(verdict)] == [("lacks", "user")]


def test_a_declaration_of_another_type_does_not_fit(tmp_path: Path) -> None:
    verdict = plan(tmp_path, "columns.yaml", yaml.safe_dump({**DECLARED, "id": "string"}))
    assert verdict.outcome == "dead_letter"
    assert verdict.reason == "field 'id' is string, but column 'id' holds int64"


def test_an_avro_schema_of_a_pipeline_that_reads_json_makes_dead_letters(tmp_path: Path) -> None:
    verdict = plan(tmp_path, "event.avsc", json.dumps(EVENT))
    assert (verdict.outcome, verdict.reason) == ("dead_letter", "it is an Avro schema, and the pipeline reads json")


def test_a_pipeline_of_both_takes_both(tmp_path: Path) -> None:
    (tmp_path / "1.avsc").write_text(json.dumps(EVENT))
    both = {"formats": ["avro", "json"], "sections": {"registry": {"files": {1: str(tmp_path / "1.avsc")}}}}
    declared = yaml.safe_dump({**DECLARED, "new": "long"})
    assert effects(plan(tmp_path, "columns.yaml", declared, **both))[0] == ("adds", "new", "int64")
    wider = {**EVENT, "fields": [*EVENT["fields"], {"name": "extra", "type": "int"}]}
    assert effects(plan(tmp_path, "event.avsc", json.dumps(wider), **both))[0] == ("adds", "extra", "int32")
    assert effects(plan(tmp_path, **both)) == [
        ("adds", "note", "string"),
        ("lacks", "user", "struct<name: string, rest: string>"),
        ("lacks", "rest", "string"),
    ]


@pytest.mark.parametrize(
    ("file", "text", "message"),
    [
        (
            "",
            "",
            "values of the format json name no schema. Give the columns that are to be declared: --file columns.y",
        ),
        ("columns.yaml", "[1]", "columns.yaml is empty or not a mapping; it has the members with their types"),
        ("columns.yaml", "id: lnog", "columns.yaml: id: 'lnog' is no type; did you mean 'long'?"),
        ("columns.yaml", "a: [", "columns.yaml is not YAML: line 1"),
    ],
)
def test_what_is_no_declaration_is_a_sentence(tmp_path: Path, file: str, text: str, message: str) -> None:
    with pytest.raises(ConfigError) as refusal:
        plan(tmp_path, file, text)
    assert message in str(refusal.value)


@pytest.mark.parametrize("file", ["", "columns.yaml", "event.avsc"])
def test_raw_values_have_no_schema_to_plan(tmp_path: Path, file: str) -> None:
    raw = {"formats": "raw", "columns": {}, "event_time": {"field": "_kafka_time"}}
    with pytest.raises(ConfigError, match="pipeline 'clicks': values of the format raw name no schema"):
        plan(tmp_path, file, json.dumps(EVENT), **raw)
