"""What columns mean, by the `doc` of the registered schemas that fill them."""

from collections import defaultdict
from collections.abc import Iterator, Mapping
from typing import Any

from headrace.writer.avro import schema as avro
from headrace.writer.avro.schema_text import find_definitions, full_name, read_json
from headrace.writer.columns.schema_plan import SchemaPlan, WriterSchema
from headrace.writer.config.pipelines import Config
from headrace.writer.engines.dbt_sources import Descriptions
from headrace.writer.maintenance.local_pipeline import open_local_pipeline
from headrace.writer.schemas.registry import source


def read_descriptions(name: str, config: Config) -> Descriptions:
    """Return what the schemas of a pipeline's topics say of its table and its columns.

    Raises ConfigError, CommitFailed, RegistryUnreachable.
    """
    plan = open_local_pipeline(name, config, source(config.registry_of(name)), checked=False).plan
    return describe_columns(plan)


def describe_columns(plan: SchemaPlan) -> Descriptions:
    """Return descriptions by the newest schema of each record that has one. Where records differ, there is none."""
    tables: dict[str, str] = {}
    by_column: dict[str, dict[str, str]] = defaultdict(dict)
    order = sorted(plan.schemas, key=lambda schema_id: plan.ranks.get(schema_id, len(plan.ranks)))
    for schema_id in order:
        schema = plan.schemas[schema_id]
        if not isinstance(schema, WriterSchema):
            continue
        record, definition = _read_root(schema.text)
        if text := _doc_of(definition):
            tables[record] = text
        for column, text in _column_docs(plan, schema, definition):
            by_column[column][record] = text
    agreed = {column: _agreed(texts) for column, texts in by_column.items()}
    return Descriptions(_agreed(tables), {column: text for column, text in agreed.items() if text})


def _read_root(text: str) -> tuple[str, Mapping[str, Any]]:
    """Return the full name of a schema's record, and the record as it stands, with what no reader needs."""
    record = str(avro.parse(text).root["name"])
    definitions = find_definitions(read_json(text))
    return record, next(schema for schema, space in definitions if full_name(schema, space) == record)


def _column_docs(plan: SchemaPlan, schema: WriterSchema, definition: Mapping[str, Any]) -> Iterator[tuple[str, str]]:
    """Yield columns of the table with the doc of the field that fills each."""
    docs = {str(record_field.get("name")): _doc_of(record_field) for record_field in definition["fields"]}
    by_column = {column: docs[name] for name, column in schema.columns.items() if docs.get(name)}
    if not schema.shaped:
        yield from by_column.items()
        return
    shaped = plan.shaped[schema.shaped]
    if shaped.output is None:
        return
    for made, column in shaped.output.columns.items():
        # What lies inside a field says too little of a column.
        sources = [path[0] for path in shaped.spec.sources((made,), ()) if len(path) == 1]
        for name in sources:
            if name in by_column:
                yield column, by_column[name]


def _doc_of(part: Mapping[str, Any]) -> str:
    doc = part.get("doc")
    return doc.strip() if isinstance(doc, str) else ""


def _agreed(texts: Mapping[str, str]) -> str:
    """Return the one text of all records; empty where they differ."""
    distinct = set(texts.values())
    return distinct.pop() if len(distinct) == 1 else ""
