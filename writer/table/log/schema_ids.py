"""What schema ids mean, stored in the table's log: a fingerprint for each id that decoded rows.

It is a `txn`, so it survives the log's checkpoints and clean-up and costs an entry only where an id is new:
`<pipeline>/schema/<registry>/<kind of id>/<id>` → the schema's fingerprint, and `…/<id>/since` → the instant from which
on the id means it, in microseconds since 1970, where another meaning was accepted. `…/<id>/message/<full name>` → 1,
for each message of a Protobuf schema that decoded rows. A headrace that does not know them passes over all of these.
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any, ClassVar
from urllib.parse import quote, unquote

from headrace.writer.core.errors import SchemaChanged
from headrace.writer.core.pages import page_address
from headrace.writer.core.text import join_first
from headrace.writer.framing.wire_format import Ids, parse_id, show_id
from headrace.writer.table.log.foreign_writes import CommitFailed
from headrace.writer.table.log.operations.operation import CheckedLog, Operation
from headrace.writer.table.log.snapshot import PipelineSnapshot

# Name of a `txn` → its value.
Transactions = Mapping[str, int]
# Between the name of an id and that of a message.
_MESSAGE = "/message/"
# Ids in a sentence.
_NAMED_MAX = 10


def id_prefix(pipeline: str, registry: str, ids: Ids) -> str:
    """Return how the names of all ids of one kind at one registry begin."""
    return f"{pipeline}/schema/{quote(registry, safe='')}/{ids}/"


def since_name(name: str) -> str:
    """Return the name of the `txn` that holds the time from which an id has its meaning."""
    return f"{name}/since"


def accepted_times(transactions: Transactions, pipeline: str) -> dict[str, int]:
    """Return from when on ids of a pipeline have other meanings than they had: by name, in microseconds since 1970."""
    prefix = f"{pipeline}/schema/"
    return {name: time for name, time in transactions.items() if name.startswith(prefix) and name.endswith("/since")}


def message_name(name: str, message: str) -> str:
    """Return the name of the `txn` that says that rows were decoded as a message of an id's schema."""
    return f"{name}{_MESSAGE}{quote(message, safe='')}"


def recorded_messages(transactions: Transactions, prefix: str) -> set[str]:
    """Return the full names of the messages as which rows were decoded, of all ids with this prefix."""
    return {
        unquote(name.partition(_MESSAGE)[2]) for name in transactions if name.startswith(prefix) and _MESSAGE in name
    }


def recorded_meanings(transactions: Transactions, prefix: str) -> dict[int, int]:
    """Return the meanings of all ids with this prefix: id → fingerprint."""
    meanings = {}
    for name, fingerprint in transactions.items():
        id_text = name.removeprefix(prefix)
        if name.startswith(prefix) and "/" not in id_text:
            meanings[parse_id(id_text)] = fingerprint
    return meanings


def new_meanings(transactions: Transactions, meanings: Mapping[str, int]) -> dict[str, int]:
    """Return the meanings that the log does not have yet, for an entry.

    Raises SchemaChanged where it has others: the rows were read by other schemas than their ids mean.
    """
    changed = [name for name, meaning in meanings.items() if transactions.get(name, meaning) != meaning]
    if changed:
        raise schema_changed_error(changed)
    return {name: meaning for name, meaning in meanings.items() if name not in transactions}


@dataclass(frozen=True)
class SchemaAcceptance(Operation):
    """Lets schema ids mean others than they did. It needs no epoch."""

    kind: ClassVar[str] = "schema"

    id: str
    # Values of the `txn` of the ids, and since when they mean it.
    values: Mapping[str, int]
    # JSON values: the registry, the ids, at.
    facts: Mapping[str, Any] = field(default_factory=dict)

    def field_facts(self) -> dict[str, Any]:
        """Return nothing: the `txn` values say it."""
        return {}

    def transactions(self, snapshot: PipelineSnapshot) -> dict[str, int]:  # noqa: ARG002 - of the base
        """Return the meanings as they are from then on."""
        return dict(self.values)

    def check(self, newest: PipelineSnapshot, previous: PipelineSnapshot, log: CheckedLog) -> None:  # noqa: ARG002 - of the base
        """Raise CommitFailed when the pipeline was started since the snapshot."""
        if newest.epoch != previous.epoch:
            raise CommitFailed(
                f"pipeline {newest.pipeline!r} was started meanwhile; nothing was accepted. Stop it, then look again."
            )


def schema_changed_error(names: Iterable[str]) -> SchemaChanged:
    """Return the error that ids, by the names of their `txn`, mean other schemas than the log has of them."""
    sorted_names = sorted(names)
    pipeline, _, registry, _, _ = sorted_names[0].split("/")
    ids = [show_id(parse_id(name.rpartition("/")[2])) for name in sorted_names]
    return SchemaChanged(
        f"schema id {join_first(ids, _NAMED_MAX)} at {unquote(registry)} is another schema than the one by which "
        f"pipeline {pipeline!r} has read records: the registry was made anew, or gave the id out again. Nothing was "
        "written. Bring the registry's schemas back, from a backup; or, where new records have the new schema, look at "
        f"it with `headrace schema accept --pipeline {pipeline}`, and accept it with --yes "
        f"({page_address('docs/RUNBOOK.md')})."
    )
