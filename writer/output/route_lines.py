"""Words about the tables of a route, from a pipeline's part of `/status`."""

from collections.abc import Mapping, Sequence
from typing import Any

from rich.text import Text

from headrace.writer.core.text import plural, span
from headrace.writer.core.units import show_size

# A pipeline's lines name at most as many tables.
_SHOWN = 3
_WITHOUT = {"refused": "refused", "beyond_max": "beyond route.max_targets"}


def target_order(target: Mapping[str, Any]) -> tuple[bool, float, int, str]:
    """Return what tables are sorted by: those that are behind first, the longest first, then by rows."""
    return target["behind"] is None, -(target["behind_seconds"] or 0.0), -target["rows"], target["name"]


def route_lines(pipeline: Mapping[str, Any]) -> list[tuple[str, Text]]:
    """Return a label and a text for each line about the tables of a pipeline's route."""
    targets = pipeline.get("targets", ())
    behind = [target for target in targets if target["behind"] is not None]
    names = _names_without_table(pipeline.get("names_without_table", {}))
    lines = []
    if targets:
        lines.append(("tables", _tables(targets, len(behind))))
    lines += [("behind", _behind(target, pipeline.get("max_held_bytes"))) for target in behind[:_SHOWN]]
    if names:
        lines.append(("no table", Text(names, "yellow")))
    return lines


def behind_text(target: Mapping[str, Any], max_held_bytes: int | None = None) -> str:
    """Return how long a table is behind, why, and what waits for it; empty if it is not behind."""
    if target["behind"] is None:
        return ""
    text = f"{span(target['behind_seconds'] or 0.0)}: {target['behind']}"
    entries = target.get("waiting_entries")
    if entries is None:
        return text
    if not entries:
        return f"{text}; nothing waits"
    waits = f"{entries:,} entries wait"
    if entries == 1:
        waits = "1 entry waits"
    text += f"; {waits} after version {target['applied_version']}"
    if not target["held_bytes"]:
        return text
    text += f", {show_size(target['held_bytes'])}"
    if max_held_bytes is not None:
        text += f" of {show_size(max_held_bytes)}"
    return f"{text} held"


def _names_without_table(counts: Mapping[str, int]) -> str:
    return ", ".join(f"{plural(count, 'name')} {_WITHOUT.get(why, why)}" for why, count in counts.items() if count)


def _tables(targets: Sequence[Mapping[str, Any]], behind: int) -> Text:
    text = Text(f"{len(targets):,}")
    if behind:
        text.append(f", {behind} behind", style="red")
    most = sorted(targets, key=lambda target: -target["rows"])[:_SHOWN]
    return text.append(
        "; most rows: " + ", ".join(f"{target['name']} {target['rows']:,}" for target in most), style="dim"
    )


def _behind(target: Mapping[str, Any], max_held_bytes: int | None) -> Text:
    return Text(f"{target['name']} for {behind_text(target, max_held_bytes)}", "red")
