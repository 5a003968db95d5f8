"""kill -9 between every two effects of what is done to an Iceberg table: the next process goes on."""

import time
from itertools import count
from pathlib import Path

import pytest

from headrace.writer.table.table import PipelineTable
from tests.support.killed_process import HOUR, OPERATIONS, is_killed_before
from tests.support.table_formats import iceberg_table
from tests.support.tables import P0, batch, begin, create_table, iceberg_table_of, rows, write_file

EFFECTS_MIN = {
    "create": 5,
    "start": 6,
    "commit": 6,
    "rewrite": 6,
    "grow": 6,
}  # a draft, metadata, the catalog, an entry


def prepared(location: str, operation: str) -> None:
    """Make a table with two files of ten rows each, but for an operation that makes the table."""
    if operation != "create":
        table = create_table(location, "iceberg")
        epoch = begin(table)
        for offset in (0, 10):
            table.append(batch(epoch, offset, offset + 10, write_file(location, HOUR, 10, "iceberg")), table.snapshot())


def drafts(table: PipelineTable) -> list[str]:
    return sorted(path.name for path in Path(table.location, "_headrace/log/drafts").glob("*"))


def carried_on(location: str, operation: str) -> None:
    """Start again, carry the log to 60, and look at everything."""
    table = create_table(location, "iceberg")
    offset = table.snapshot().frontier(P0) or 0
    assert offset in {"create": (0,), "commit": (20, 40)}.get(operation, (20,))
    assert rows(table) == offset
    epoch = begin(table)
    for end in range(offset + 20, 61, 20):
        table.append(batch(epoch, end - 20, end, write_file(location, HOUR, 20, "iceberg")), table.snapshot())
    assert (rows(table), table.snapshot().frontier(P0)) == (60, 60)
    assert [entry.version for entry in table.history()] == list(range(table.snapshot().version, -1, -1))
    assert {file.path for file in table.bucket_files(table.snapshot())} == {
        path.removeprefix("file://").removeprefix(f"{location}/")
        for path in iceberg_table_of(location).inspect.files()["file_path"].to_pylist()
    }
    assert len(drafts(table)) <= 1, "that of the process that died"
    iceberg_table(location, "events")._log.sweep(before=time.time() + 60)
    assert drafts(table) == []


@pytest.mark.timeout(1800)
@pytest.mark.parametrize("operation", OPERATIONS)
def test_a_process_killed_between_any_two_effects_is_followed_by_one_that_goes_on(
    tmp_path: Path, operation: str
) -> None:
    for offset in count():
        location = str(tmp_path / str(offset) / "lake")
        prepared(location, operation)
        died = is_killed_before(location, operation, offset)
        carried_on(location, operation)
        if not died:
            break
    assert offset >= EFFECTS_MIN[operation]
