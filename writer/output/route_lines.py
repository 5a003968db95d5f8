"""Words about the tables of a route, from a pipeline's part of `/status`."""

from collections.abc import Mapping, Sequence
from typing import Any

from rich.text import Text

from writer.core.text import plural, span
from writer.core.units import show_size

_SHOWN = 3  # tables that a pipeline's lines name
_WITHOUT = {"refused": "refused", "beyond_max": "beyond route.max_targets"}


def worst_first(target: Mapping[str, Any]) -> tuple[bool, float, int, str]:
    """Return what tables are sorted by: those that are behind first, the longest first, then by rows."""
    return target["behind"] is None, -(target["behind_seconds"] or 0.0), -target["rows"], target["name"]


def route_lines(pipeline: Mapping[str, Any]) -> list[tuple[str, Text]]:
    """Return a label and a text for each line about the tables of a pipeline's route."""
    targets = pipeline.get("targets", ())
    behind = [one for one in targets if one["behind"] is not None]
    names = _names_without_table(pipeline.get("names_without_table", {}))
    return [
        *([("tables", _tables(targets, len(behind)))] if targets else []),
        *(("behind", _behind(one, pipeline.get("held_bytes_max"))) for one in behind[:_SHOWN]),
        *([("no table", Text(names, "yellow"))] if names else []),
    ]


def behind_words(one: Mapping[str, Any], held_bytes_max: int | None = None) -> str:
    """Say of a table for how long it is behind, why, and what waits for it; nothing where it is not."""
    if one["behind"] is None:
        return ""
    words = f"{span(one['behind_seconds'] or 0.0)}: {one['behind']}"
    if (entries := one.get("waiting_entries")) is None:
        return words
    waits = f"{entries:,} {'entry waits' if entries == 1 else 'entries wait'}" if entries else "nothing waits"
    most = "" if held_bytes_max is None else f" of {show_size(held_bytes_max)}"
    held = f", {show_size(one['held_bytes'])}{most} held" if one["held_bytes"] else ""
    return f"{words}; {waits} after version {one['applied_version']}{held}" if entries else f"{words}; {waits}"


def _names_without_table(counts: Mapping[str, int]) -> str:
    return ", ".join(f"{plural(count, 'name')} {_WITHOUT.get(why, why)}" for why, count in counts.items() if count)


def _tables(targets: Sequence[Mapping[str, Any]], behind: int) -> Text:
    text = Text(f"{len(targets):,}")
    text.append(f", {behind} behind" if behind else "", style="red")
    most = sorted(targets, key=lambda one: -one["rows"])[:_SHOWN]
    return text.append("; most rows: " + ", ".join(f"{one['name']} {one['rows']:,}" for one in most), style="dim")


def _behind(one: Mapping[str, Any], held_bytes_max: int | None) -> Text:
    return Text(f"{one['name']} for {behind_words(one, held_bytes_max)}", "red")
