"""Shows many pipelines, of one release or of several, as a table: one line each, the worst first."""

import json
import re
from collections import Counter
from collections.abc import Callable, Hashable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal, TypeVar

from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

from headrace.writer.core.text import plural, span
from headrace.writer.output.health import LEVELS, Health, health
from headrace.writer.output.route_lines import target_order
from headrace.writer.output.status_screen import config_text, screen
from headrace.writer.output.tables import count_cell, ruled_table

_T = TypeVar("_T")
Sort = Literal["worst", "name", "lag", "rows"]
SORTS: tuple[Sort, ...] = ("worst", "name", "lag", "rows")
_STYLES = {"critical": "bold red", "warning": "yellow", "ok": "green"}
_SILENT = "no driver answers"
# As many tables that are behind are shown below the pipelines.
_TABLES_SHOWN = 5


@dataclass(frozen=True)
class FleetRow:
    """One pipeline of a release, or with an empty name a release that does not answer."""

    release: str
    name: str
    health: Health
    # The pipeline's part of `/status`, with what that says of the process; empty if no driver answers.
    pipeline: Mapping[str, Any]

    @property
    def label(self) -> str:
        """Name of the pipeline among all releases."""
        return "/".join(filter(None, (self.release, self.name)))


def rows(releases: Mapping[str, Mapping[str, Any]], search: str = "", sort: Sort = "worst") -> list[FleetRow]:
    """Return a line for each pipeline whose name, release, state or table holds `search`.

    `releases`: by name the document of `/status`, or one with an `error`.
    """
    every_row = [row for release, document in releases.items() for row in _release_rows(release, document)]
    matching = [row for row in every_row if search.lower() in _search_text(row)]
    return sorted(matching, key=_keys[sort])


def _release_rows(release: str, document: Mapping[str, Any]) -> Iterator[FleetRow]:
    if "error" in document:
        yield FleetRow(release, "", Health("critical", (f"{_SILENT}: {document['error']}",)), {})
        return
    for name, pipeline in document["pipelines"].items():
        of_process = {key: pipeline.get(key) or document.get(key) for key in ("config", "executors")}
        yield FleetRow(release, name, health(pipeline), {**pipeline, **of_process})


def _search_text(row: FleetRow) -> str:
    tables = [target["name"] for target in row.pipeline.get("targets", ())]
    return "\n".join([row.release, row.name, row.pipeline.get("state", ""), *tables]).lower()


def _lag_order(row: FleetRow) -> int:
    if not row.pipeline:
        return 0
    return -int(row.pipeline["lag"]["offsets"] or 0)


def _row_order(row: FleetRow) -> int:
    return -sum(int(commit["rows"]) for commit in row.pipeline.get("commits", ()))


_keys: Mapping[Sort, Callable[[FleetRow], Any]] = {
    "worst": lambda row: (LEVELS.index(row.health.level), _lag_order(row), row.release, row.name),
    "name": lambda row: (row.release, row.name),
    "lag": lambda row: (_lag_order(row), row.release, row.name),
    "rows": lambda row: (_row_order(row), row.release, row.name),
}


def group_of(name: str) -> str:
    """Return the group of a pipeline or a table: its name up to the last dot; without one, up to the last - or _."""
    if "." in name:
        return name.rpartition(".")[0]
    return re.split(r"[-_](?=[^-_]*$)", name)[0]


def group_items(items: Iterable[_T], key: Callable[[_T], Hashable]) -> list[list[_T]]:
    """Return items by group, the groups in the order of their first items."""
    groups = dict[Hashable, list[_T]]()
    for item in items:
        groups.setdefault(key(item), []).append(item)
    return list(groups.values())


def fleet(rows: Sequence[FleetRow], *, by_group: bool = False) -> RenderableType:
    """Show a sum, what is wrong with configurations, a line for each pipeline, and tables of routes that are behind.

    `by_group`: a line for each group of pipelines instead.
    """
    if by_group:
        names = ["release", "group", "state"]
        numbers = ["pipelines", "lag", "waits", "commit"]
        groups = group_items(rows, lambda row: (row.release, group_of(row.name)))
        lines = [[Text(group[0].release), *_group_cells(group)] for group in groups]
    else:
        names = ["release", "pipeline", "state"]
        numbers = ["lag", "waits", "commit"]
        lines = [[Text(row.release), *_cells(row)] for row in rows]
    sheet = release_sheet(names, numbers, "trouble", lines, with_release=is_several(rows))
    return Group(_sum(rows), *_configs(rows), sheet, *_behind(rows))


def long(rows: Sequence[FleetRow]) -> RenderableType:
    """Show all lines of each pipeline, after the releases that do not answer."""
    return Group(*silent_rows(rows), screen({"pipelines": {row.label: row.pipeline for row in rows if row.pipeline}}))


def verdicts(rows: Sequence[FleetRow]) -> RenderableType:
    """Show a line for each pipeline: its level, and every reason for it."""
    lines = []
    for row in rows:
        level = row.health.level
        text = Text.assemble((row.label, "bold"), "  ", (level, _STYLES[level]))
        if row.health.reasons:
            text.append(f"  {'; '.join(row.health.reasons)}")
        lines.append(text)
    return Group(*lines)


def silent_line(release: str, error: str, time: str) -> str:
    """Return the line of a release that does not answer. `time`: of the state."""
    return f"{time} {release} state=silent error={json.dumps(error, ensure_ascii=False)}"


def is_several(rows: Iterable[FleetRow]) -> bool:
    """Return whether rows are of more than one release."""
    return len({row.release for row in rows}) > 1


def silent_rows(rows: Iterable[FleetRow]) -> Iterator[Text]:
    """Give a line for each release that does not answer."""
    for row in rows:
        if not row.pipeline:
            yield Text(f"{row.label}: {'; '.join(row.health.reasons)}", _STYLES[row.health.level])


def _configs(rows: Iterable[FleetRow]) -> Iterator[Text]:
    """Yield what of each process's configuration file is not in force, once for all of its pipelines."""
    lines = dict[tuple[str, str], Text]()
    for row in rows:
        # One file may run in several processes.
        url = (row.pipeline.get("driver") or {}).get("url", "")
        text = config_text(row.pipeline.get("config"))
        if text.plain:
            lines.setdefault((row.release, url), Text(f"file of {url or row.release}: ", "yellow").append(text))
    yield from lines.values()


def _sum(rows: Sequence[FleetRow]) -> Text:
    states = Counter(row.pipeline.get("state", "silent") for row in rows)
    levels = Counter(row.health.level for row in rows)
    text = Text(plural(sum(bool(row.name) for row in rows), "pipeline") + ": ")
    text.append(", ".join(f"{count} {state}" for state, count in states.most_common()))
    tables = sum(len(row.pipeline.get("targets", ())) for row in rows)
    if tables:
        text.append(f"; {plural(tables, 'table')} of routes")
    for level in LEVELS[:-1]:
        if levels[level]:
            text.append(f"; {levels[level]} {level}", _STYLES[level])
    return text


def _cells(row: FleetRow) -> Iterator[Text | str]:
    trouble = Text("; ".join(row.health.reasons), _STYLES[row.health.level])
    if not row.pipeline:
        yield from ("", Text("silent", _STYLES[row.health.level]), "", "", "", trouble)
        return
    lag = row.pipeline["lag"]
    age_s = row.pipeline["commit_age_seconds"]
    # Nothing waits where there is no lag.
    wait_s = None
    if lag["offsets"]:
        wait_s = lag["seconds"]
    yield Text(row.name)
    yield Text(row.pipeline["state"], _STYLES[row.health.level])
    yield count_cell(lag["offsets"], "?")
    yield _span_cell(wait_s)
    yield _span_cell(age_s)
    yield trouble


def _span_cell(seconds: float | None) -> str:
    if seconds is None:
        return ""
    return span(seconds)


def _group_cells(group: Sequence[FleetRow]) -> Iterator[Text | str]:
    """Give the cells of a group: sums of its pipelines, the longest time, the worst level with its first reason."""
    worst = min(group, key=lambda row: LEVELS.index(row.health.level))
    style = _STYLES[worst.health.level]
    pipelines = [row.pipeline for row in group if row.pipeline]
    states = Counter(row.pipeline.get("state", "silent") for row in group)
    ages = [pipeline["commit_age_seconds"] for pipeline in pipelines if pipeline["commit_age_seconds"] is not None]
    lags = [pipeline["lag"] for pipeline in pipelines]
    waits = [lag["seconds"] for lag in lags if lag["offsets"] and lag["seconds"] is not None]
    offsets: int | None = None
    if lags and all(lag["offsets"] is not None for lag in lags):
        offsets = sum(lag["offsets"] for lag in lags)
    levels = Counter(row.health.level for row in group)
    counts = ", ".join(f"{levels[level]} {level}" for level in LEVELS[:-1] if levels[level])
    name = group_of(worst.name)
    trouble = ""
    if len(group) == 1:
        name = worst.name
        trouble = "; ".join(worst.health.reasons)
    elif counts:
        trouble = f"{counts}; {worst.name}: {worst.health.reasons[0]}"
    yield Text(name)
    yield Text(", ".join(f"{count} {state}" for state, count in states.most_common()), style)
    yield f"{len(group):,}"
    yield count_cell(offsets, "?")
    yield _span_cell(max(waits, default=None))
    yield _span_cell(max(ages, default=None))
    yield Text(trouble, style)


def release_sheet(
    names: Sequence[str],
    numbers: Sequence[str],
    text: str,
    lines: Iterable[Sequence[Text | str]],
    *,
    with_release: bool,
) -> Table:
    """Return a table with names at the left, then numbers, and a text that takes what is left of the line.

    The first name is that of the release. Without `with_release` its column is left out.
    """
    first = 0 if with_release else 1
    table = ruled_table(*names[first:], *numbers, text, left=len(names) - first)
    table.columns[-1].justify = "left"
    for line in lines:
        table.add_row(*line[first:])
    return table


def _behind(rows: Iterable[FleetRow]) -> Iterator[RenderableType]:
    late = [(row, target) for row in rows for target in row.pipeline.get("targets", ()) if target["behind"] is not None]
    late.sort(key=lambda pair: target_order(pair[1]))
    for row, target in late[:_TABLES_SHOWN]:
        for_s = span(target["behind_seconds"] or 0.0)
        yield Text(f"{row.label}: table {target['name']} behind for {for_s}: {target['behind']}", "red")
    if len(late) > _TABLES_SHOWN:
        yield Text(f"and {plural(len(late) - _TABLES_SHOWN, 'table')} more; --tables lists them", "red")
