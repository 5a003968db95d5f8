"""Shows the tables of routes, of one release or of several, one by one or by group: those that are behind first."""

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from rich.console import Group, RenderableType
from rich.text import Text

from writer.core.text import span
from writer.core.units import show_size
from writer.output.fleet_screen import FleetRow, group_of, grouped, is_several, sheet_of, silent_rows
from writer.output.route_lines import worst_first

_Line = tuple[FleetRow, Mapping[str, Any]]  # a table, and its pipeline


def tables(found: Sequence[FleetRow], search: str = "", *, by_group: bool = False) -> RenderableType:
    """Show the tables of routes whose name, pipeline or release holds `search`: those behind first, then by rows.

    `by_group`: a line for each group of a pipeline's tables. Releases that do not answer stand above.
    """
    listed = [
        (row, one) for row in found for one in row.pipeline.get("targets", ())
        if search.lower() in f"{row.release}\n{row.name}\n{one['name']}".lower()
    ]  # fmt: skip
    listed.sort(key=lambda line: worst_first(line[1]))
    release = ["release"] if is_several(found) else []
    if by_group:
        numbers = ["tables", "rows", "files", "waiting", "held"]
        sheet = sheet_of([*release, "pipeline", "group"], numbers, ["behind"])
        lines = grouped(listed, lambda line: (line[0].release, line[0].name, group_of(line[1]["name"])))
        rows = ((some[0][0], _group_cells([one for _, one in some])) for some in lines)
    else:
        numbers = ["rows", "files", "version", "waiting", "held"]
        sheet = sheet_of([*release, "pipeline", "table"], numbers, ["behind", "location"])
        rows = ((row, _cells(one)) for row, one in listed)
    for row, cells in rows:
        sheet.add_row(*([Text(row.release)] if release else []), Text(row.name), *cells)
    return Group(*silent_rows(found), sheet)


def _cells(one: Mapping[str, Any]) -> Iterator[Text | str]:
    yield Text(one["name"])
    yield from (f"{one['rows']:,}", f"{one['files']:,}", str(one.get("applied_version", "?")))
    yield from _waiting([one])
    yield from (Text(_behind(one), "red"), Text(one["location"]))


def _group_cells(some: Sequence[Mapping[str, Any]]) -> Iterator[Text | str]:
    """Give the cells of a group: sums of its tables, and the worst of them, which is the first."""
    behind = [one for one in some if one["behind"] is not None]
    words = f"{len(behind)}: {behind[0]['name']} for {_behind(behind[0])}" if behind else ""
    yield Text(group_of(some[0]["name"]))
    yield f"{len(some):,}"
    yield from (f"{sum(one[key] for one in some):,}" for key in ("rows", "files"))
    yield from _waiting(some)
    yield Text(words, "red")


def _waiting(some: Sequence[Mapping[str, Any]]) -> tuple[str, str]:
    """Return how many entries wait for tables, and the bytes of files among them; nothing for none."""
    entries, held = (sum(one.get(key, 0) for one in some) for key in ("waiting_entries", "held_bytes"))
    return f"{entries:,}" if entries else "", show_size(held) if held else ""


def _behind(one: Mapping[str, Any]) -> str:
    return "" if one["behind"] is None else f"{span(one['behind_seconds'] or 0.0)}: {one['behind']}"
