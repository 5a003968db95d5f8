"""Shows the tables of routes, of one release or of several, one by one or by group: those that are behind first."""

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from rich.console import Group, RenderableType
from rich.text import Text

from headrace.writer.core.units import show_size
from headrace.writer.output.fleet_screen import FleetRow, group_items, group_of, is_several, release_sheet, silent_rows
from headrace.writer.output.route_lines import behind_text, target_order

# A table, and its pipeline.
_Line = tuple[FleetRow, Mapping[str, Any]]


def tables(fleet_rows: Sequence[FleetRow], search: str = "", *, by_group: bool = False) -> RenderableType:
    """Show the tables of routes whose name, pipeline or release holds `search`: those behind first, then by rows.

    `by_group`: a line for each group of a pipeline's tables. Releases that do not answer stand above.
    """
    listed = [
        (row, target)
        for row in fleet_rows
        for target in row.pipeline.get("targets", ())
        if search.lower() in f"{row.release}\n{row.name}\n{target['name']}".lower()
    ]
    listed.sort(key=lambda line: target_order(line[1]))
    if by_group:
        names = ["release", "pipeline", "group"]
        numbers = ["tables", "rows", "files", "held"]
        groups = group_items(listed, lambda line: (line[0].release, line[0].name, group_of(line[1]["name"])))
        lines = [[*_row_cells(group[0][0]), *_group_cells([target for _, target in group])] for group in groups]
    else:
        names = ["release", "pipeline", "table"]
        numbers = ["rows", "files", "version"]
        lines = [[*_row_cells(row), *_cells(row, target)] for row, target in listed]
    sheet = release_sheet(names, numbers, "behind", lines, with_release=is_several(fleet_rows))
    return Group(*silent_rows(fleet_rows), sheet)


def _row_cells(row: FleetRow) -> list[Text]:
    return [Text(row.release), Text(row.name)]


def _cells(row: FleetRow, target: Mapping[str, Any]) -> Iterator[Text | str]:
    yield Text(target["name"])
    yield from (f"{target['rows']:,}", f"{target['files']:,}", str(target.get("applied_version", "?")))
    yield Text(behind_text(target, row.pipeline.get("max_held_bytes")), "red")


def _group_cells(targets: Sequence[Mapping[str, Any]]) -> Iterator[Text | str]:
    """Give the cells of a group: sums of its tables, and the worst of them, which is the first."""
    behind = [target for target in targets if target["behind"] is not None]
    waiting_bytes = sum(target.get("held_bytes", 0) for target in targets)
    name = targets[0]["name"]
    if len(targets) > 1:
        name = group_of(name)
    yield Text(name)
    yield f"{len(targets):,}"
    yield f"{sum(target['rows'] for target in targets):,}"
    yield f"{sum(target['files'] for target in targets):,}"
    yield show_size(waiting_bytes) if waiting_bytes else ""
    text = Text(style="red")
    if behind:
        text.append(f"{len(behind)}; {behind[0]['name']} for {behind_text(behind[0])}")
    yield text
