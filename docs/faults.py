"""Writes docs/FAULTS.md from the outcomes that the fault suite has recorded. `make test-long` records, and writes."""

from itertools import groupby
from pathlib import Path

from tests.fault.cells import COMMITTED, Cell, read

_INTRODUCTION = """# Faults

Written by `make reference` from what the fault suite has recorded in `tests/fault/outcomes.json`; do not edit.
`make test-long` records all of it anew.

Each row is a fault at a moment, with a table of either format (*on*). After it the table is read as any reader would
(*seen twice*: offsets that are there twice, or above the frontier, before the restart; where the writer goes on by
itself, while it does). Then the writer is started again where it ended, and every offset below the frontier is looked
for in rows, dead letters and gaps by DuckDB over the files, those that a log replayed by hand names, or all that lie in
the folders of a Parquet table; and in process also by `headrace audit --deep`. *Lost* and *twice* are counted, not
assumed.

In process means: the rooms, the stores, the table and redo as they are, without Spark and Kafka, so that each single
operation can be made to fail. What delta-rs does to the storage itself (creating a table, writing a checkpoint of its
log) does not pass there.
"""
_HEAD = (
    "| moment | on | times | how it went | seen twice | records | lost | twice |",
    "| --- | --- | ---: | --- | ---: | ---: | ---: | ---: |",
)


def text() -> str:
    """Return the whole page."""
    found = sorted(read(COMMITTED), key=lambda cell: (cell.fault, cell.on, cell.moment))
    lines = [_INTRODUCTION, _sum(found), ""]
    for fault, cells in groupby(found, key=lambda cell: cell.fault):
        lines += [f"## {fault[0].upper()}{fault[1:]}", "", *_HEAD, *map(_row, cells), ""]
    return "\n".join(lines)


def _sum(found: list[Cell]) -> str:
    times, records, lost, twice = (
        sum(getattr(c, name) for c in found) for name in ("times", "records", "lost", "twice")
    )
    return (
        f"**{len(found)} rows, {times:,} faults, {records:,} records: {lost} lost, {twice} twice, "
        f"{sum(c.seen_twice for c in found)} seen twice.**"
    )


def _row(cell: Cell) -> str:
    return (
        f"| {cell.moment} | {cell.on} | {cell.times} | {cell.ended} | {cell.seen_twice} | {cell.records:,} | "
        f"{cell.lost} | {cell.twice} |"
    )


if __name__ == "__main__":
    (Path(__file__).parent / "FAULTS.md").write_text(text(), encoding="utf-8")
