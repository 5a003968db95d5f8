"""Delta logs to read, to follow and to damage: made by delta-rs, grown by hand."""

import json
from pathlib import Path
from typing import Any
from uuid import uuid4

import pyarrow as pa
import pyarrow.parquet as pq
from deltalake import DeltaTable, Schema

from headrace.writer.storage.locations import store_at
from headrace.writer.table.log.log import Log, State

COLUMNS = pa.schema([("id", pa.int64()), ("text", pa.string()), ("hour", pa.string())])
LINES = "one\u2028two\u2029three\x85four\x0bfive"  # all of them end a line for str.splitlines, none does in a Delta log
SAID = {"commitInfo": {"timestamp": 1, "operation": "WRITE", "operationParameters": {}}}


def log_at(location: Path) -> Log:
    return Log(store_at(f"{location}/_delta_log"))


def create(location: Path, **properties: str) -> Log:
    DeltaTable.create(
        str(location),
        schema=Schema.from_arrow(COLUMNS),
        partition_by=["hour"],
        name="lake",
        configuration=properties,
    )
    return log_at(location)


def txn_action(name: str, version: int) -> dict[str, Any]:
    return {"txn": {"appId": name, "version": version, "lastUpdated": 1}}


def add_action(location: Path, hour: str | None = "x") -> dict[str, Any]:
    """Return the action for a file that is there."""
    path = f"hour=some/{uuid4().hex}.parquet"
    target = location / path
    target.parent.mkdir(exist_ok=True)
    pq.write_table(pa.table({"id": [1, 2], "text": [LINES, None]}), target)
    return {
        "add": {
            "path": path,
            "size": target.stat().st_size,
            "stats": json.dumps({"numRecords": 2}),
            "dataChange": True,
            "partitionValues": {"hour": hour},
            "modificationTime": 1,
        }
    }


def append_actions(log: Log, *actions: dict[str, Any]) -> State:
    assert log.append(log.state(), [SAID, *actions])
    return log.state()


def facts(state: State) -> list[Any]:
    """What entries and checkpoint must both say."""
    metadata = [state.metadata[name] for name in ("name", "partitionColumns", "schemaString")]
    protocol = [state.protocol[name] for name in ("minReaderVersion", "minWriterVersion")]
    return [state.table_version, dict(state.transactions), dict(state.configuration), *metadata, *protocol]


def log_files(location: Path, pattern: str = "*") -> list[Path]:
    return sorted((location / "_delta_log").glob(pattern))


def write_checkpoint(location: Path) -> Path:
    """Write a checkpoint of the newest version. Returns its file."""
    DeltaTable(str(location)).create_checkpoint()
    return log_files(location, "*.checkpoint.parquet")[-1]
