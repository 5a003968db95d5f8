"""How a backfill looks: a bar on a terminal, a line a chunk in a pipe, JSON for a machine; and what it would take."""

from collections.abc import Callable, Sequence
from datetime import datetime
from typing import Any, Self

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TaskID, TextColumn, TimeRemainingColumn

from recovery.backfill.carry import Filling, Settled
from recovery.backfill.run import Outcome, Wish, chosen
from recovery.backfill.source import Source
from writer.commit import bytes_per_row
from writer.gaps.ticket import Ticket
from writer.surface import lines
from writer.surface.words import plural
from writer.tables.parts import Range
from writer.units import show_size

ROWS_A_SECOND = 60_000  # of one process, where nobody has measured more: decoding, writing, small chunks
_BYTES_PER_ROW = 60.0  # of Parquet, until a commit has shown it
_SHOWN = 8  # characters of an id


class Board:
    """Tells whoever watches."""

    def __init__(self, pipeline: str, out: Console, *, as_json: bool, now: datetime) -> None:
        """`as_json`: one line for each chunk."""
        self._pipeline, self._out, self._json, self._began = pipeline, out, as_json, now
        self._bar = Progress(
            TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TextColumn("offsets"),
            TimeRemainingColumn(), TextColumn("[dim]{task.fields[note]}"), console=out,
            disable=as_json or not out.is_terminal,
        )  # fmt: skip
        self._task: TaskID | None = None

    def __enter__(self) -> Self:
        self._bar.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._bar.stop()

    def began(self, ticket: Ticket, offsets: int) -> None:
        """A ticket is being filled."""
        self._task = self._bar.add_task(f"{self._pipeline} gap {ticket.id[:_SHOWN]}", total=offsets, note="")
        if not self._out.is_terminal and not self._json:
            lines.sentence(self._out, f"{self._pipeline}: gap {ticket.id[:_SHOWN]}, {plural(offsets, 'offset')} open")

    def settled(self, ticket: Ticket, chunk: Settled) -> None:
        """One chunk more is in the table."""
        if self._json:
            lines.emit({"event": "chunk", "pipeline": self._pipeline, "gap": ticket.id, **vars(chunk)})
        elif not self._out.is_terminal:
            told = f"{plural(chunk.offsets, 'offset')}, {plural(chunk.rows, 'row')} in {plural(chunk.files, 'file')}"
            lines.sentence(self._out, f"  version {chunk.version}: {told}; {chunk.left:,} left")
        if self._task is not None:
            self._bar.update(self._task, advance=chunk.offsets, note="")

    def waits(self, why: str) -> None:
        """It waits."""
        if self._task is not None:
            self._bar.update(self._task, note=f"waits: {why}")
        if self._json and "behind" in why:
            lines.emit({"event": "waits", "pipeline": self._pipeline, "because": why})


def ended(name: str, outcomes: Sequence[Outcome], *, as_json: bool, out: Console) -> int:
    """Say what became of the tickets. Returns 1 when one of them is open still."""
    if as_json:
        lines.emit({"event": "ended", "pipeline": name, "gaps": [_told(one) for one in outcomes]})
    elif not outcomes:
        lines.sentence(out, f"{name}: no gap is open.")
    for one in outcomes if not as_json else ():
        gap = f"{name}: gap {one.ticket.id[:_SHOWN]}"
        if one.ticket.state == "open":
            left = sum(r.end - r.start for r in one.absent)
            lines.sentence(
                out,
                f"{gap} got {plural(one.rows, 'row')}; {plural(left, 'offset')} are not in this source: "
                f"{_listed(one.absent)}. Try --from-mirror or --from-archive; `headrace gaps close --lost` gives up.",
                "yellow",
            )
        else:
            about = f" about right, by event time: {one.ticket.unplaced:,} rows in all" if one.ticket.unplaced else ""
            lines.sentence(out, f"{gap} is {one.ticket.state}: {plural(one.rows, 'row')}{about}.", "green")
    return int(any(one.ticket.state == "open" for one in outcomes))


def estimated(
    filling: Filling, sources: Callable[[Ticket], Sequence[Source]], wish: Wish, *, as_json: bool, out: Console
) -> int:
    """Say what a backfill would take: rows, time, and what it costs. Returns 1 when a source lacks offsets."""
    _, tickets = filling.look()
    each = bytes_per_row(filling.table.recent(10)) or _BYTES_PER_ROW
    speed = min(wish.rate or ROWS_A_SECOND, ROWS_A_SECOND)
    found: list[dict[str, Any]] = []
    for ticket in chosen(tickets, wish):
        left = ticket.left()
        held: list[Range] = []
        for source in sources(ticket):
            held += source.available(left)
        offsets, there = (sum(r.end - r.start for r in some) for some in (left, held))
        chunks = -(-there // wish.rows_max)
        files = max(chunks, round(there * each / filling.settings.roll.target_file_size))
        found.append({
            "gap": ticket.id, "offsets": offsets, "available": there, "chunks": chunks,
            "seconds": round(there / speed + chunks, 1), "bytes": round(there * each), "files_min": files,
            "objects_put_min": files + chunks, "cpu_seconds": round(there / speed, 1),
        })  # fmt: skip
    short = any(one["available"] < one["offsets"] for one in found)
    if as_json:
        lines.emit_whole({"pipeline": filling.name, "rows_a_second": speed, "gaps": found})
        return int(short)
    if not found:
        lines.sentence(out, f"{filling.name}: no gap is open.")
    for one in found:
        lines.sentence(
            out,
            f"{filling.name}: gap {one['gap'][:_SHOWN]}: {one['available']:,} of {plural(one['offsets'], 'offset')} "
            f"are there; {plural(one['chunks'], 'chunk')}, about {one['seconds']:,.0f} s at {speed:,.0f} rows a second "
            f"on one core, {show_size(one['bytes'])} in {one['files_min']:,} files or more, "
            f"{one['objects_put_min']:,} objects put or more. Nothing was written.",
        )
    return int(short)


def _told(one: Outcome) -> dict[str, Any]:
    return {
        "gap": one.ticket.id, "state": one.ticket.state, "rows": one.rows, "chunks": len(one.chunks),
        "left": sum(r.end - r.start for r in one.ticket.left()), "approximate": one.ticket.unplaced > 0,
        "absent": [{**vars(r.part), "start": r.start, "end": r.end} for r in one.absent],
    }  # fmt: skip


def _listed(ranges: Sequence[Range]) -> str:
    shown = [f"{r.part.topic}/{r.part.partition} [{r.start:,}, {r.end:,})" for r in ranges[:3]]
    return ", ".join(shown) + (f" and {len(ranges) - 3} more" if len(ranges) > 3 else "")  # noqa: PLR2004
