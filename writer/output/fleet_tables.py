"""Shows the tables of routes, of one release or of several, one by one or by group: those that are behind first."""

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from rich.console import Group, RenderableType
from rich.text import Text

from writer.core.units import show_size
from writer.output.fleet_screen import FleetRow, group_of, grouped, is_several, sheet_of, silent_rows
from writer.output.route_lines import behind_words, worst_first

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
        numbers = ["tables", "rows", "files", "held"]
        sheet = sheet_of([*release, "pipeline", "group"], numbers, ["behind"])
        lines = grouped(listed, lambda line: (line[0].release, line[0].name, group_of(line[1]["name"])))
        rows = ((some[0][0], _group_cells([one for _, one in some])) for some in lines)
    else:
        sheet = sheet_of([*release, "pipeline", "table"], ["rows", "files", "version"], ["behind"])
        rows = ((row, _cells(row, one)) for row, one in listed)
    for row, cells in rows:
        sheet.add_row(*([Text(row.release)] if release else []), Text(row.name), *cells)
    return Group(*silent_rows(found), sheet)


def _cells(row: FleetRow, one: Mapping[str, Any]) -> Iterator[Text | str]:
    yield Text(one["name"])
    yield from (f"{one['rows']:,}", f"{one['files']:,}", str(one.get("applied_version", "?")))
    yield Text(behind_words(one, row.pipeline.get("held_bytes_max")), "red")


def _group_cells(some: Sequence[Mapping[str, Any]]) -> Iterator[Text | str]:
    """Give the cells of a group: sums of its tables, and the worst of them, which is the first."""
    behind, held = [one for one in some if one["behind"] is not None], sum(one.get("held_bytes", 0) for one in some)
    yield Text(some[0]["name"] if len(some) == 1 else group_of(some[0]["name"]))
    yield f"{len(some):,}"
    yield from (f"{sum(one[key] for one in some):,}" for key in ("rows", "files"))
    yield show_size(held) if held else ""
    yield Text(f"{len(behind)}; {behind[0]['name']} for {behind_words(behind[0])}" if behind else "", "red")
