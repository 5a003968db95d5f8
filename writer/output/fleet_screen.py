"""Shows many pipelines, of one release or of several, as a table: one line each, the worst first."""

import json
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

from writer.core.text import plural, span
from writer.output.health import LEVELS, Health, health
from writer.output.status_screen import config_text, screen
from writer.output.tables import ruled

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


def fleet(found: Sequence[FleetRow]) -> RenderableType:
    """Show a sum, what is wrong with configurations, a line for each pipeline, and tables of routes that are behind."""
    several = _several(found)
    names = ["release", "pipeline", "state"] if several else ["pipeline", "state"]
    table = _table(names, ["lag", "waits", "commit"], ["trouble"])
    for row in found:
        table.add_row(*([Text(row.release)] if several else []), *_cells(row))
    return Group(_sum(found), *_configs(found), table, *_behind(found))


def long(found: Sequence[FleetRow]) -> RenderableType:
    """Show all lines of each pipeline, after the releases that do not answer."""
    return Group(*_silent(found), screen({"pipelines": {row.label: row.pipeline for row in found if row.pipeline}}))


def silent_line(release: str, error: str, at: str) -> str:
    """Say on one line that a release does not answer."""
    return f"{at} {release} state=silent error={json.dumps(error, ensure_ascii=False)}"


def _several(found: Iterable[FleetRow]) -> bool:
    return len({row.release for row in found}) > 1


def _silent(found: Iterable[FleetRow]) -> Iterator[Text]:
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


def _table(names: Sequence[str], numbers: Sequence[str], words: Sequence[str]) -> Table:
    """Return a table with names at the left, then numbers, and words that take what is left of the line."""
    table = ruled(*names, *numbers, *words, left=len(names))
    for column in table.columns[-len(words) :]:
        column.justify = "left"
    return table


def _behind(found: Iterable[FleetRow]) -> Iterator[RenderableType]:
    late = [(row, one) for row in found for one in row.pipeline.get("targets", ()) if one["behind"] is not None]
    late.sort(key=lambda pair: -pair[1]["behind_seconds"])
    for row, one in late[:_TABLES_SHOWN]:
        yield Text(f"{row.label}: table {one['name']} behind for {span(one['behind_seconds'])}: {one['behind']}", "red")
    if len(late) > _TABLES_SHOWN:
        yield Text(f"and {plural(len(late) - _TABLES_SHOWN, 'table')} more; --tables lists them", "red")


def tables(found: Sequence[FleetRow], search: str = "") -> RenderableType:
    """Show the tables of routes, those that are behind first, then by their rows since the start.

    Releases that do not answer stand above.
    """
    listed = [
        (row, one) for row in found for one in row.pipeline.get("targets", ())
        if search.lower() in f"{row.release}\n{row.name}\n{one['name']}".lower()
    ]  # fmt: skip
    listed.sort(key=lambda pair: (-(pair[1]["behind_seconds"] or -1.0), -pair[1]["rows"], pair[1]["name"]))
    several = _several(found)
    table = _table([*(["release"] if several else []), "pipeline", "table"], ["rows", "files"], ["behind", "location"])
    for row, one in listed:
        behind = "" if one["behind"] is None else f"{span(one['behind_seconds'])}: {one['behind']}"
        names = (*([row.release] if several else []), row.name, one["name"])
        numbers = (f"{one['rows']:,}", f"{one['files']:,}")
        table.add_row(*map(Text, names), *numbers, Text(behind, "red"), Text(one["location"]))
    return Group(*_silent(found), table)
