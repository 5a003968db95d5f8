"""What schema ids mean, stored in the table's log: a fingerprint for each id that decoded rows.

It stands as a `txn`, so it survives the log's checkpoints and clean-up and costs an entry only where an id is new:
`<pipeline>/schema/<registry>/<kind of id>/<id>` → the schema's fingerprint, and `…/<id>/since` → the instant from which
on the id means it, in microseconds since 1970, where another meaning was accepted. A headrace that does not know
them passes over both.
"""

from collections.abc import Iterable, Mapping
from typing import Any
from urllib.parse import quote, unquote
from uuid import UUID, uuid4

from writer.avro.wire_format import Ids, show_id
from writer.core.errors import SchemaChanged
from writer.table.log.appender import Appender
from writer.table.log.foreign_writes import CommitFailed
from writer.table.log.snapshot import PipelineSnapshot

Transactions = Mapping[str, int]  # name of a `txn` → its value
_NAMED_MAX = 10  # ids in a message


def prefix(pipeline: str, registry: str, ids: Ids) -> str:
    """Begin of the names of all ids of one kind at one registry."""
    return f"{pipeline}/schema/{quote(registry, safe='')}/{ids}/"


def since_name(name: str) -> str:
    """Name of the `txn` that holds the time from which an id has its meaning."""
    return f"{name}/since"


def recorded(transactions: Transactions, before: str) -> dict[int, int]:
    """Return the meanings of all ids with this prefix: id → fingerprint."""
    mine = ((name.removeprefix(before), value) for name, value in transactions.items() if name.startswith(before))
    return {_id(rest): value for rest, value in mine if "/" not in rest}


def unrecorded(transactions: Transactions, meanings: Mapping[str, int]) -> dict[str, int]:
    """Return the meanings that the log does not have yet, for an entry.

    Raises SchemaChanged where it has others: the rows were read by other schemas than their ids mean.
    """
    changed = [name for name, found in meanings.items() if transactions.get(name, found) != found]
    if changed:
        raise other(changed)
    return {name: found for name, found in meanings.items() if name not in transactions}


def accept(end: Appender, snapshot: PipelineSnapshot, values: Mapping[str, int], facts: Mapping[str, Any]) -> int:
    """Let schema ids mean others than they did, by the values of their `txn`. It needs no epoch.

    Raises CommitFailed when the pipeline was started since the snapshot.
    """

    def check(newest: PipelineSnapshot) -> None:
        if newest.epoch != snapshot.epoch:
            raise CommitFailed(
                f"pipeline {end.pipeline!r} was started meanwhile; nothing was accepted. Stop it, then look again."
            )

    about = {"kind": "schema", "id": uuid4().hex, **facts}
    return end.append(snapshot, [], values, about, check)


def other(names: Iterable[str]) -> SchemaChanged:
    """Say that these ids, by the names of their `txn`, mean other schemas than the log has of them."""
    listed = sorted(names)
    pipeline, _, registry, _, _ = listed[0].split("/")
    ids = [show_id(_id(name.rpartition("/")[2])) for name in listed]
    more = f" and {len(ids) - _NAMED_MAX} more" if len(ids) > _NAMED_MAX else ""
    return SchemaChanged(
        f"schema id {', '.join(ids[:_NAMED_MAX])}{more} at {unquote(registry)} is another schema than the one by which "
        f"pipeline {pipeline!r} has read records: the registry was made anew, or gave the id out again. Nothing was "
        "written. Bring the registry's schemas back, from a backup; or, where new records have the new schema, look at "
        f"it with `headrace schema accept --pipeline {pipeline}`, and accept it with --yes (docs/RUNBOOK.md)."
    )


def _id(text: str) -> int:
    return UUID(text).int if "-" in text else int(text)
