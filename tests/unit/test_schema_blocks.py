"""Records wait for others of their schema until they are a block; none is lost, and their bytes are bounded."""

import pyarrow as pa
import pytest

from headrace.writer.batch.schema_blocks import SchemaBlocks


def records(first: int, count: int, width: int = 10) -> pa.Table:
    return pa.table({"offset": pa.array(range(first, first + count)), "value": [b"v" * width] * count})


def offsets(block: pa.Table) -> list[int]:
    return block.column("offset").to_pylist()


def test_a_schema_that_has_most_of_a_batch_waits_for_nothing() -> None:
    blocks = SchemaBlocks()
    group = records(0, 90)
    ((schema_id, block),) = blocks.add([(1, group)], 100)
    assert schema_id == 1
    assert block is group
    assert list(blocks.take_rest()) == []


def test_schemas_that_alternate_make_blocks_of_a_whole_batch() -> None:
    blocks = SchemaBlocks()
    found = [
        list(blocks.add([(schema_id, records(start, 30)) for schema_id in (1, 2, 3)], 90)) for start in (0, 30, 60)
    ]
    assert found[:2] == [[], []]
    assert [schema_id for schema_id, _ in found[2]] == [1, 2, 3]
    for _, block in found[2]:
        assert offsets(block) == list(range(90))
        assert block.column("value").num_chunks == 1
    assert list(blocks.take_rest()) == []


def test_records_that_wait_come_before_those_of_a_batch_that_is_alike() -> None:
    blocks = SchemaBlocks()
    assert list(blocks.add([(1, records(0, 10))], 100)) == []
    ((_, block),) = blocks.add([(1, records(10, 100))], 100)
    assert offsets(block) == list(range(110))


def test_what_waits_at_the_end_is_taken_once() -> None:
    blocks = SchemaBlocks()
    assert list(blocks.add([(1, records(0, 3)), (2, records(3, 2))], 100)) == []
    assert [(schema_id, offsets(block)) for schema_id, block in blocks.take_rest()] == [(1, [0, 1, 2]), (2, [3, 4])]
    assert list(blocks.take_rest()) == []


@pytest.mark.parametrize("schemas", [2, 7, 50])
def test_what_waits_is_bounded_in_bytes_and_the_largest_goes_first(schemas: int) -> None:
    group = records(0, 4, width=1_000)
    blocks = SchemaBlocks(bytes_max=10 * group.nbytes)
    taken = 0
    for turn in range(20 * schemas):
        for _, block in blocks.add([(turn % schemas, group)], 10_000):
            assert block.num_rows >= 4 * (10 // schemas)
            taken += block.num_rows
        assert 4 * (turn + 1) - taken <= 40
    rest = sum(block.num_rows for _, block in blocks.take_rest())
    assert rest <= 40
    assert taken + rest == 20 * schemas * 4
