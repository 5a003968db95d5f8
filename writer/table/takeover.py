"""Takes over a Delta table of another writer: one entry with its owner, added columns and row count."""

import json
from collections.abc import Mapping, Sequence
from typing import Any
from urllib.parse import unquote

import pyarrow as pa

from writer.table.log.appender import Appender, LostRace
from writer.table.log.control_commits import OWNER
from writer.table.log.entries import redescribed
from writer.table.log.foreign_writes import CommitFailed, one_line, unwritable
from writer.table.log.log import Action, State
from writer.table.log.snapshot import FORMAT, PipelineSnapshot, format_name
from writer.table.schema_evolution import ColumnTypeMismatch, grown

_FEATURES = ("readerFeatures", "writerFeatures")
_COPY = "Copy its rows into a new table of reader 1, writer 2, then adopt that one"
_MARKS = {"delta.invariants": "an invariant", "delta.generationExpression": "a generated value"}


def obstacles(state: State, columns: Sequence[pa.Field], bucket_columns: Sequence[str]) -> list[str]:
    """Return what keeps a table of another writer from being adopted, each as a sentence with its fix. Pure.

    `columns`: that it is to have besides its own.
    """
    known, found = state.metadata, []
    owner = known.get("name") or ""
    if owner.startswith(OWNER):
        return [f"It belongs to pipeline {owner.removeprefix(OWNER)!r} already."]
    features = sorted({str(name) for key in _FEATURES for name in state.protocol.get(key) or ()})
    if protocol := unwritable(state):
        named = f" (features: {', '.join(features)})" if features else ""
        found.append(f"Its protocol is {protocol}{named}; headrace writes 1, 2, for every engine. {_COPY}.")
    if (mode := state.configuration.get("delta.columnMapping.mode", "none")) != "none":
        found.append(f"Its columns are mapped by {mode}: names in the files are not those of the table. {_COPY}.")
    if state.configuration.get("delta.appendOnly") == "true":
        found.append("It is append-only: retention, deletes and compaction could not work. Unset delta.appendOnly.")
    have = list(known["partitionColumns"])
    if have != list(bucket_columns):
        found.append(
            f"It is partitioned by {', '.join(have) or 'nothing'}, the pipeline buckets by {', '.join(bucket_columns)}."
            " Set 'bucket', its 'column' included, to what the table has, or write it anew."
        )
    fields = json.loads(known["schemaString"])["fields"]
    found += _odd(fields, have)
    try:
        grown(known["schemaString"], columns)
    except ColumnTypeMismatch as error:
        found.append(f"{str(error)[:1].upper()}{str(error)[1:]}. Rename that column, or give it this type.")
    return found


def _odd(fields: Sequence[Mapping[str, Any]], partitioned_by: Sequence[str]) -> list[str]:
    found = [
        f"Its partition column {one['name']} is {one['type']}; buckets are strings. Write it anew with a string column."
        for one in fields
        if one["name"] in partitioned_by and one["type"] != "string"
    ]
    strict = [place for one in fields for place in _not_null(one, "")]
    if strict:
        found.append(f"{', '.join(strict)} must not be null, but may be in records. Drop NOT NULL there.")
    for mark, what in _MARKS.items():
        bound = [one["name"] for one in fields if mark in (one.get("metadata") or {})]
        if bound:
            found.append(f"{', '.join(bound)} has {what}, which is not checked here. Drop it.")
    return found


def _not_null(field: Mapping[str, Any], at: str) -> list[str]:
    """Name the fields that must not be null, down into structs."""
    name, kind = f"{at}{field['name']}", field["type"]
    inner = kind["fields"] if isinstance(kind, dict) and kind["type"] == "struct" else []
    return [*([] if field["nullable"] else [name]), *(p for one in inner for p in _not_null(one, f"{name}."))]


def outside(paths: Sequence[str]) -> str:
    """Name a file that lies elsewhere, as those of a shallow clone do; empty where none does."""
    return next((path for path in paths if "://" in path or unquote(path).startswith("/")), "")


def taken(
    pipeline: str, known: Action, version: int, columns: Sequence[pa.Field], layout: str, facts: Mapping[str, Any]
) -> list[Action]:
    """Return the actions that make a table the pipeline's. `known`: what it says of itself; `version`: of the entry."""
    schema, added = grown(known["schemaString"], columns)
    about = {"kind": "take", **facts, "added": added, "before": {k: known.get(k) for k in ("name", "description")}}
    values = {format_name(pipeline): FORMAT, f"{pipeline}/settled": version}
    changes = {"name": OWNER + pipeline, "description": layout, "schemaString": schema}
    return redescribed("ADD COLUMNS", about, known, values, **changes)


def take_over(
    end: Appender, snapshot: PipelineSnapshot, columns: Sequence[pa.Field], layout: str, facts: Mapping[str, Any]
) -> int:
    """Make the table the pipeline's, on exactly this snapshot. Returns the version that holds it.

    The history up to there is looked at no more. Raises CommitFailed when something was written meanwhile.
    """
    version = snapshot.version + 1
    try:
        end.put(snapshot, taken(end.pipeline, snapshot.state.metadata, version, columns, layout, facts))
    except (LostRace, OSError) as error:
        raise CommitFailed(
            f"the table at {end.location} was written to meanwhile, or cannot be: {one_line(error)}. Stop "
            "who writes it, then look again."
        ) from error
    return version
