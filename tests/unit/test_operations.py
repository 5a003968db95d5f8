"""What each operation says about its log entry: its kind, its facts in their order, its files."""

import json
from collections.abc import Mapping, Sequence
from dataclasses import FrozenInstanceError
from datetime import UTC, datetime
from typing import Any

import pytest

from headrace.writer.core.files import BucketFile, StagedFile
from headrace.writer.core.offsets import OffsetRange, OffsetSet, TopicPartition
from headrace.writer.table.log.foreign_writes import Change
from headrace.writer.table.log.operations.gaps import Fill, Gap, Loss
from headrace.writer.table.log.operations.operation import Operation
from headrace.writer.table.log.operations.rewinds import Acceptance, ReopenedBucket, Rewind, TargetRewind, Undo
from headrace.writer.table.log.operations.rows import Batch, BucketChange, RemovedRows, Replay, Reprocess, Rewrite
from headrace.writer.table.log.operations.seals import Closing, Sealing
from headrace.writer.table.log.schema_ids import SchemaAcceptance
from headrace.writer.table.log.snapshot import KINDS

NOON = datetime(2026, 11, 20, 12, tzinfo=UTC)
PART = TopicPartition("clicks", 1, 0)
RANGE = OffsetRange(PART, 3, 5)
RANGE_JSON = {"topic": "clicks", "incarnation": 1, "partition": 0, "start": 3, "end": 5}
NOON_TEXT = "2026-11-20T12:00:00+00:00"
CHANGE_JSON = {"version": 4, "operation": "MERGE"}
BUCKET = ("2026-11-20T12",)
DEAD_LETTERS = {"/dead": OffsetSet({PART: [(3, 5)]})}
DEAD_LETTERS_JSON = {"/dead": [["clicks", 1, 0, [[3, 5]]]]}
STAGED = StagedFile("a.parquet", BUCKET, 2, 10, NOON, NOON, "{}", {})
RESTORED = StagedFile("b.parquet", BUCKET, 2, 10, NOON, NOON, "{}", {})
IN_TABLE = BucketFile("b.parquet", BUCKET, 2, 10)
OTHERS_FILE = BucketFile("c.parquet", BUCKET, 2, 10)
FACTS = {"at": "2026-11-20"}
REWIND = Rewind(
    "i",
    7,
    [RANGE],
    [IN_TABLE],
    [],
    DEAD_LETTERS,
    [ReopenedBucket(BUCKET, 2, 0)],
    closed_until=NOON,
    gaps={"g": 2},
    targets=[TargetRewind("eu", "/eu", 1)],
    undo=Undo([Change(4, "MERGE")], [OTHERS_FILE], [RESTORED], {PART: 5}),
)

# Each operation, and its facts as the log has them.
ENTRIES: Sequence[tuple[Operation, Mapping[str, Any]]] = [
    (
        Batch("i", 1, [RANGE], [STAGED], facts=FACTS),
        {"kind": "batch", "side_files": {}, "id": "i", "at": "2026-11-20"},
    ),
    (
        Replay("i", 0, [], {}, DEAD_LETTERS, {"moves": []}),
        {"kind": "replay", "side_files": {}, "withdrawn": DEAD_LETTERS_JSON, "id": "i", "moves": []},
    ),
    (Rewrite("i", [IN_TABLE], [STAGED]), {"kind": "rewrite", "id": "i"}),
    (
        Rewrite("i", [IN_TABLE], removed_rows=RemovedRows("delete", 2)),
        {"kind": "rewrite", "taken": {"why": "delete", "rows": 2}, "id": "i"},
    ),
    (
        Reprocess("i", [IN_TABLE], [], [STAGED], [BucketChange(BUCKET, 2, 2)]),
        {"kind": "reprocess", "side_files": {}, "buckets": [[["2026-11-20T12"], 2, 2]], "id": "i"},
    ),
    (
        Gap("i", 1, [RANGE], "retention", FACTS),
        {"kind": "gap", "cause": "retention", "ranges": [RANGE_JSON], "id": "i", "at": "2026-11-20"},
    ),
    (
        Fill("i", "g", 0, 2, 1, done=False),
        {"kind": "fill", "gap": "g", "offsets": 2, "left": 1, "done": False, "side_files": {}, "id": "i"},
    ),
    (Loss("i", "g", 0, 2), {"kind": "lost", "gap": "g", "left": 2, "id": "i"}),
    (Closing("i", NOON), {"kind": "close", "until": NOON_TEXT, "id": "i"}),
    (Closing("i", NOON, target=2), {"kind": "close", "until": NOON_TEXT, "target": 2, "id": "i"}),
    (Sealing("i", [{"bucket": ["x"]}]), {"kind": "seal", "manifests": [{"bucket": ["x"]}], "id": "i"}),
    (
        Acceptance("i", [Change(4, "MERGE")], 3),
        {"kind": "accept", "answers": [CHANGE_JSON], "taken": {"why": "accepted", "rows": 3}, "id": "i"},
    ),
    (
        SchemaAcceptance("i", {"clicks/schema/r/value/1": 7}, FACTS),
        {"kind": "schema", "id": "i", "at": "2026-11-20"},
    ),
    (
        REWIND,
        {
            "kind": "rewind",
            "to": 7,
            "taken": {"why": "rewind", "rows": 2},
            "reopened": [[["2026-11-20T12"], 2, 0]],
            "closed_until": NOON_TEXT,
            "gaps": ["g"],
            "targets": {"/eu": {"name": "eu", "number": 1, "reopened": [], "closed_until": None}},
            "answers": [CHANGE_JSON],
            "withdrawn": DEAD_LETTERS_JSON,
            "ranges": [RANGE_JSON],
            "id": "i",
        },
    ),
]
IDS = [f"{operation.kind}-{number}" for number, (operation, _) in enumerate(ENTRIES)]


@pytest.mark.parametrize(("operation", "facts"), ENTRIES, ids=IDS)
def test_an_entry_has_the_facts_of_log_format_1_in_their_order(operation: Operation, facts: Mapping[str, Any]) -> None:
    assert json.dumps(operation.entry_facts()) == json.dumps(facts)


def test_each_operation_has_a_kind_of_its_own_and_is_in_this_table() -> None:
    kinds = {operation.kind: type(operation) for operation, _ in ENTRIES}
    assert set(kinds.values()) == set(Operation.__subclasses__())
    assert len(kinds) == len(Operation.__subclasses__())
    assert set(kinds) <= set(KINDS)


@pytest.mark.parametrize("operation", [operation for operation, _ in ENTRIES], ids=IDS)
def test_an_operation_is_a_value_that_does_not_change(operation: Any) -> None:
    with pytest.raises(FrozenInstanceError):
        operation.id = "other"


@pytest.mark.parametrize("key", ["kind", "side_files"])
def test_a_further_fact_may_not_hide_what_the_fields_say(key: str) -> None:
    with pytest.raises(AssertionError, match="would hide"):
        Batch("i", 1, [RANGE], facts={key: "x"}).entry_facts()


def test_rows_only_move_where_none_goes_and_none_has_another_value() -> None:
    assert Rewrite("i", [IN_TABLE], [STAGED]).moves_only
    assert Rewrite("i", [IN_TABLE], [STAGED], RemovedRows("dedupe", 0)).moves_only
    assert not Rewrite("i", [IN_TABLE], (), RemovedRows("delete", 2)).moves_only
    assert not Rewrite("i", [IN_TABLE], [STAGED], changes=True).moves_only


def test_a_restored_file_that_a_rewind_takes_rows_of_neither_comes_nor_goes() -> None:
    assert [file.path for file in REWIND.added_files] == []
    assert [file.path for file in REWIND.removed_files] == ["c.parquet"]
