"""What a person sees of the life of buckets: watermark, what is sealed and what not, and how late rows come."""

from collections.abc import Mapping, Sequence
from itertools import accumulate
from typing import Any

from rich.text import Text

from writer.surface.words import instant, plural, span

_BLOCKED_SHOWN = 3
_STATES = (("closed", "not sealed yet"), ("reopened", "to be sealed again"), ("open", "open"))
_SHARES = (0.5, 0.99, 0.999)


def seal_lines(pipeline: Mapping[str, Any]) -> list[tuple[str, Text]]:
    """Return a label and a text for each thing that there is to say."""
    seals = pipeline["seals"]
    lines = [("lateness", _lateness(pipeline["lateness"]))]
    if seals is None:
        return lines
    return [("watermark", _watermark(seals)), ("sealed", _sealed(seals)), *_trouble(seals), *lines]


def _watermark(seals: Mapping[str, Any]) -> Text:
    if seals["watermark"] is None:
        text = Text("none yet", style="yellow")
    else:
        text = Text(f"{instant(seals['watermark'])}, {span(max(0.0, seals['watermark_delay_seconds']))} ago")
    held, idle = seals["held_by"], len(seals["idle"])
    if held is not None:
        text.append(f"; held by {held['topic']}/{held['partition']}", style="dim")
    return text.append(f"; {plural(idle, 'partition')} idle" if idle else "", style="dim")


def _sealed(seals: Mapping[str, Any]) -> Text:
    until = seals["closed_until"]
    parts = ["nothing is closed yet" if until is None else f"closed until {instant(until)}"]
    parts += [f"{plural(seals[state], 'bucket')} {word}" for state, word in _STATES if seals[state]]
    following = seals["next"]
    if following is not None:
        parts.append(f"next {following['bucket']}, which ends {instant(following['ends'])}")
    return Text(", ".join(parts))


def _trouble(seals: Mapping[str, Any]) -> list[tuple[str, Text]]:
    blocked, more = seals["blocked"][:_BLOCKED_SHOWN], len(seals["blocked"]) - _BLOCKED_SHOWN
    lines = [("blocked", Text(f"{one['bucket']}: {one['because']}", style="yellow")) for one in blocked]
    if more > 0:
        lines.append(("", Text(f"and {plural(more, 'bucket')} more", style="yellow")))
    return lines + [(one["step"], Text(f"fails: {one['because']}", style="red")) for one in seals["trouble"]]


def _lateness(lateness: Mapping[str, Any]) -> Text:
    """Say within which time what share of the rows came after their events, and how many came too late."""
    total, late = sum(lateness["behind"]), sum(lateness["beyond"])
    if not total:
        return Text("")
    shares = [f"{share:.3g} % of rows {_within(lateness['bounds_seconds'], lateness['behind'], share / 100)}"
              for share in (100 * s for s in _SHARES)]  # fmt: skip
    text = Text(", ".join(dict.fromkeys(shares)))
    return text.append(f"; {plural(late, 'row')} after their bucket was closed", style="yellow") if late else text


def _within(bounds: Sequence[int], bins: Sequence[int], share: float) -> str:
    total = sum(bins)
    for bound, below in zip(bounds, accumulate(bins), strict=False):
        if below >= share * total:
            return f"within {span(bound)}"
    return f"after more than {span(bounds[-1])}"
