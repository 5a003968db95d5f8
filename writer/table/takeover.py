"""Takes over a Delta table of another writer: one entry with its owner, added columns and row count."""

import json
from collections.abc import Iterator, Mapping, Sequence
from typing import Any
from urllib.parse import unquote

import pyarrow as pa

from headrace.writer.table.log.appender import Appender, LostRace
from headrace.writer.table.log.entries import metadata_actions
from headrace.writer.table.log.foreign_writes import CommitFailed, one_line, unwritable_protocol
from headrace.writer.table.log.log import Action, State
from headrace.writer.table.log.snapshot import FORMAT, OWNER, PipelineSnapshot, format_name
from headrace.writer.table.schema_evolution import ColumnTypeMismatch, merge_columns

_FEATURES = ("readerFeatures", "writerFeatures")
_COPY = "Copy its rows into a new table of reader 1, writer 2, then adopt that one"
# Keys of a column's metadata that stand for rules which are not checked here.
_RULES = {"delta.invariants": "an invariant", "delta.generationExpression": "a generated value"}


def obstacles(state: State, columns: Sequence[pa.Field], bucket_columns: Sequence[str]) -> list[str]:
    """Return what keeps a table of another writer from being adopted, each as a sentence with its fix. Pure.

    `columns`: that it is to have besides its own.
    """
    owner = state.metadata.get("name") or ""
    if owner.startswith(OWNER):
        return [f"It belongs to pipeline {owner.removeprefix(OWNER)!r} already."]
    return [*_table_obstacles(state, bucket_columns), *_column_obstacles(state.metadata, columns)]


def _table_obstacles(state: State, bucket_columns: Sequence[str]) -> Iterator[str]:
    protocol = unwritable_protocol(state)
    if protocol:
        features = sorted({str(name) for key in _FEATURES for name in state.protocol.get(key) or ()})
        listed = f" (features: {', '.join(features)})" if features else ""
        yield f"Its protocol is {protocol}{listed}; headrace writes 1, 2, for every engine. {_COPY}."
    mode = state.configuration.get("delta.columnMapping.mode", "none")
    if mode != "none":
        yield f"Its columns are mapped by {mode}: names in the files are not those of the table. {_COPY}."
    if state.configuration.get("delta.appendOnly") == "true":
        yield "It is append-only: retention, deletes and compaction could not work. Unset delta.appendOnly."
    partition_columns = list(state.metadata["partitionColumns"])
    if partition_columns != list(bucket_columns):
        yield (
            f"It is partitioned by {', '.join(partition_columns) or 'nothing'}, the pipeline buckets by "
            f"{', '.join(bucket_columns)}. Set 'bucket', its 'column' included, to what the table has, or write it "
            "anew."
        )


def _column_obstacles(metadata: Mapping[str, Any], columns: Sequence[pa.Field]) -> Iterator[str]:
    fields = json.loads(metadata["schemaString"])["fields"]
    for field in fields:
        if field["name"] in metadata["partitionColumns"] and field["type"] != "string":
            yield (
                f"Its partition column {field['name']} is {field['type']}; buckets are strings. Write it anew with a "
                "string column."
            )
    required = [path for field in fields for path in _required_paths(field, "")]
    if required:
        yield f"{', '.join(required)} must not be null, but may be in records. Drop NOT NULL there."
    for key, rule in _RULES.items():
        names = [field["name"] for field in fields if key in (field.get("metadata") or {})]
        if names:
            yield f"{', '.join(names)} has {rule}, which is not checked here. Drop it."
    try:
        merge_columns(metadata["schemaString"], columns)
    except ColumnTypeMismatch as error:
        sentence = str(error)
        yield f"{sentence[:1].upper()}{sentence[1:]}. Rename that column, or give it this type."


def _required_paths(field: Mapping[str, Any], parent: str) -> Iterator[str]:
    """Yield the paths of fields that must not be null, down into structs."""
    path = f"{parent}{field['name']}"
    if not field["nullable"]:
        yield path
    type_ = field["type"]
    if isinstance(type_, dict) and type_["type"] == "struct":
        for inner in type_["fields"]:
            yield from _required_paths(inner, f"{path}.")


def find_outside_path(paths: Sequence[str]) -> str:
    """Return the path of a file outside the table's folder, as those of a shallow clone are; empty where none is."""
    return next((path for path in paths if "://" in path or unquote(path).startswith("/")), "")


def takeover_actions(
    pipeline: str, metadata: Action, version: int, columns: Sequence[pa.Field], layout: str, facts: Mapping[str, Any]
) -> list[Action]:
    """Return the actions that make a table the pipeline's. `metadata`: of the table; `version`: of the entry."""
    schema, added = merge_columns(metadata["schemaString"], columns)
    before = {key: metadata.get(key) for key in ("name", "description")}
    entry_facts = {"kind": "take", **facts, "added": added, "before": before}
    values = {format_name(pipeline): FORMAT, f"{pipeline}/settled": version}
    changes = {"name": OWNER + pipeline, "description": layout, "schemaString": schema}
    return metadata_actions("ADD COLUMNS", entry_facts, metadata, values, **changes)


def take_over(
    appender: Appender, snapshot: PipelineSnapshot, columns: Sequence[pa.Field], layout: str, facts: Mapping[str, Any]
) -> int:
    """Make the table the pipeline's, on exactly this snapshot. Returns the version that holds it.

    The history up to there is looked at no more. Raises CommitFailed when something was written meanwhile.
    """
    version = snapshot.version + 1
    actions = takeover_actions(appender.pipeline, snapshot.state.metadata, version, columns, layout, facts)
    try:
        appender.put(snapshot, actions)
    except (LostRace, OSError) as error:
        raise CommitFailed(
            f"the table at {appender.location} was written to meanwhile, or cannot be: {one_line(error)}. Stop "
            "who writes it, then look again."
        ) from error
    return version
