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

from writer.core.text import plural, span
from writer.output.health import LEVELS, Health, health
from writer.output.route_lines import worst_first
from writer.output.status_screen import config_text, screen
from writer.output.tables import ruled

_T = TypeVar("_T")
Sort = Literal["worst", "name", "lag", "rows"]
SORTS: tuple[Sort, ...] = ("worst", "name", "lag", "rows")
_STYLES = {"critical": "bold red", "warning": "yellow", "ok": "green"}
_SILENT = "no driver answers"
_TABLES_SHOWN = 5  # that are behind, below the pipelines


@dataclass(frozen=True)
class FleetRow:
    """One pipeline of a release, or with an empty name a release that does not answer."""

    release: str
    name: str
    health: Health
    pipeline: Mapping[str, Any]  # its part of `/status`, with what that says of the process; empty where none answers

    @property
    def label(self) -> str:
        """Name of the pipeline among all releases."""
        return f"{self.release}/{self.name}" if self.release and self.name else self.release or self.name


def rows(releases: Mapping[str, Mapping[str, Any]], search: str = "", sort: Sort = "worst") -> list[FleetRow]:
    """Return a line for each pipeline whose name, release, state or table holds `search`.

    `releases`: by name the document of `/status`, or one with an `error`.
    """
    found = [row for release, document in releases.items() for row in _of_release(release, document)]
    wanted = [row for row in found if search.lower() in _searched(row)]
    return sorted(wanted, key=_keys[sort])


def _of_release(release: str, document: Mapping[str, Any]) -> Iterator[FleetRow]:
    if "error" in document:
        yield FleetRow(release, "", Health("critical", (f"{_SILENT}: {document['error']}",)), {})
        return
    for name, pipeline in document["pipelines"].items():
        of_process = {key: pipeline.get(key) or document.get(key) for key in ("config", "executors")}
        yield FleetRow(release, name, health(pipeline), {**pipeline, **of_process})


def _searched(row: FleetRow) -> str:
    tables = [one["name"] for one in row.pipeline.get("targets", ())]
    return "\n".join([row.release, row.name, row.pipeline.get("state", ""), *tables]).lower()


def _lag(row: FleetRow) -> float:
    return -(row.pipeline["lag"]["offsets"] or 0) if row.pipeline else 0.0


def _committed(row: FleetRow) -> int:
    return -sum(int(one["rows"]) for one in row.pipeline.get("commits", ()))


_keys: Mapping[Sort, Callable[[FleetRow], Any]] = {
    "worst": lambda row: (LEVELS.index(row.health.level), _lag(row), row.release, row.name),
    "name": lambda row: (row.release, row.name),
    "lag": lambda row: (_lag(row), row.release, row.name),
    "rows": lambda row: (_committed(row), row.release, row.name),
}


def group_of(name: str) -> str:
    """Return the group of a pipeline or a table: its name up to the last dot; without one, up to the last - or _."""
    return re.split(r"\.(?=[^.]*$)" if "." in name else r"[-_](?=[^-_]*$)", name)[0]


def grouped(items: Iterable[_T], key: Callable[[_T], Hashable]) -> list[list[_T]]:
    """Return items by group, the groups in the order of their first items."""
    found = dict[Hashable, list[_T]]()
    for one in items:
        found.setdefault(key(one), []).append(one)
    return list(found.values())


def fleet(found: Sequence[FleetRow], *, by_group: bool = False) -> RenderableType:
    """Show a sum, what is wrong with configurations, a line for each pipeline, and tables of routes that are behind.

    `by_group`: a line for each group of pipelines instead.
    """
    several = ["release"] if is_several(found) else []
    if by_group:
        sheet = sheet_of([*several, "group", "state"], ["pipelines", "lag", "waits", "commit"], ["trouble"])
        for some in grouped(found, lambda row: (row.release, group_of(row.name))):
            sheet.add_row(*([Text(some[0].release)] if several else []), *_group_cells(some))
    else:
        sheet = sheet_of([*several, "pipeline", "state"], ["lag", "waits", "commit"], ["trouble"])
        for row in found:
            sheet.add_row(*([Text(row.release)] if several else []), *_cells(row))
    return Group(_sum(found), *_configs(found), sheet, *_behind(found))


def long(found: Sequence[FleetRow]) -> RenderableType:
    """Show all lines of each pipeline, after the releases that do not answer."""
    return Group(*silent_rows(found), screen({"pipelines": {row.label: row.pipeline for row in found if row.pipeline}}))


def silent_line(release: str, error: str, at: str) -> str:
    """Say on one line that a release does not answer."""
    return f"{at} {release} state=silent error={json.dumps(error, ensure_ascii=False)}"


def is_several(found: Iterable[FleetRow]) -> bool:
    """Return whether rows are of more than one release."""
    return len({row.release for row in found}) > 1


def silent_rows(found: Iterable[FleetRow]) -> Iterator[Text]:
    """Give a line for each release that does not answer."""
    for row in found:
        if not row.pipeline:
            yield Text(f"{row.label}: {'; '.join(row.health.reasons)}", _STYLES[row.health.level])


def _configs(found: Iterable[FleetRow]) -> Iterator[Text]:
    """Say of each process what of its configuration file is not in force, once for all of its pipelines."""
    lines = dict[tuple[str, str], Text]()
    for row in found:
        url = (row.pipeline.get("driver") or {}).get("url", "")  # a file's release may have several processes
        if row.pipeline.get("config") and (text := config_text(row.pipeline["config"])):
            lines.setdefault((row.release, url), Text(f"file of {url or row.release}: ", "yellow").append(text))
    yield from lines.values()


def _sum(found: Sequence[FleetRow]) -> Text:
    states = Counter(row.pipeline.get("state", "silent") for row in found)
    levels = Counter(row.health.level for row in found)
    text = Text(plural(sum(bool(row.name) for row in found), "pipeline") + ": ")
    text.append(", ".join(f"{count} {state}" for state, count in states.most_common()))
    tables = sum(len(row.pipeline.get("targets", ())) for row in found)
    text.append(f"; {plural(tables, 'table')} of routes" if tables else "")
    for level in LEVELS[:-1]:
        text.append(f"; {levels[level]} {level}" if levels[level] else "", _STYLES[level])
    return text


def _cells(row: FleetRow) -> Iterator[Text | str]:
    trouble = Text("; ".join(row.health.reasons), _STYLES[row.health.level])
    if not row.pipeline:
        yield from ("", Text("silent", _STYLES[row.health.level]), "", "", "", trouble)
        return
    lag, age_s = row.pipeline["lag"], row.pipeline["commit_age_seconds"]
    yield from (
        Text(row.name), Text(row.pipeline["state"], _STYLES[row.health.level]),
        "?" if lag["offsets"] is None else f"{lag['offsets']:,}",
        span(lag["seconds"]) if lag["offsets"] and lag["seconds"] is not None else "",
        "" if age_s is None else span(age_s), trouble,
    )  # fmt: skip


def _group_cells(some: Sequence[FleetRow]) -> Iterator[Text | str]:
    """Give the cells of a group: sums of its pipelines, the longest time, the worst level with its first reason."""
    worst = min(some, key=lambda row: LEVELS.index(row.health.level))
    style, rows = _STYLES[worst.health.level], [row.pipeline for row in some if row.pipeline]
    states = Counter(row.pipeline.get("state", "silent") for row in some)
    ages = [one["commit_age_seconds"] for one in rows if one["commit_age_seconds"] is not None]
    lags = [one["lag"] for one in rows]
    waits = [lag["seconds"] for lag in lags if lag["offsets"] and lag["seconds"] is not None]
    unknown = not lags or any(lag["offsets"] is None for lag in lags)
    levels = Counter(row.health.level for row in some)
    counts = ", ".join(f"{levels[level]} {level}" for level in LEVELS[:-1] if levels[level])
    is_one = len(some) == 1
    trouble = f"{counts}; {worst.name}: {worst.health.reasons[0]}" if counts else ""
    trouble = "; ".join(worst.health.reasons) if is_one else trouble
    yield from (
        Text(worst.name if is_one else group_of(worst.name)),
        Text(", ".join(f"{n} {state}" for state, n in states.most_common()), style),
        f"{len(some):,}", "?" if unknown else f"{sum(lag['offsets'] for lag in lags):,}",
        span(max(waits)) if waits else "", span(max(ages)) if ages else "", Text(trouble, style),
    )  # fmt: skip


def sheet_of(names: Sequence[str], numbers: Sequence[str], words: Sequence[str]) -> Table:
    """Return a table with names at the left, then numbers, and words that take what is left of the line."""
    table = ruled(*names, *numbers, *words, left=len(names))
    for column in table.columns[-len(words) :]:
        column.justify = "left"
    return table


def _behind(found: Iterable[FleetRow]) -> Iterator[RenderableType]:
    late = [(row, one) for row in found for one in row.pipeline.get("targets", ()) if one["behind"] is not None]
    late.sort(key=lambda pair: worst_first(pair[1]))
    for row, one in late[:_TABLES_SHOWN]:
        for_s = span(one["behind_seconds"] or 0.0)
        yield Text(f"{row.label}: table {one['name']} behind for {for_s}: {one['behind']}", "red")
    if len(late) > _TABLES_SHOWN:
        yield Text(f"and {plural(len(late) - _TABLES_SHOWN, 'table')} more; --tables lists them", "red")
