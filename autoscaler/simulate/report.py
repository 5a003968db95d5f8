"""Scores as a table on a terminal and as JSON."""

from collections.abc import Sequence
from dataclasses import asdict
from typing import Any

from autoscaler.policy import Policy
from autoscaler.simulate.play import Score
from autoscaler.simulate.trace import Trace


def lines(trace: Trace, scores: Sequence[Score]) -> list[str]:
    """Write the scores of one trace."""
    head = ("policy", "setting", "executor-hours", "min over SLO", "changes", "reversals", "latest")
    rows = [head, *(_row(one) for one in scores)]
    widths = [max(len(row[i]) for row in rows) for i in range(len(head))]
    text = [
        "  ".join(cell.ljust(width) if i < 2 else cell.rjust(width)  # noqa: PLR2004 - two columns of words
                  for i, (cell, width) in enumerate(zip(row, widths, strict=True))).rstrip()
        for row in rows
    ]  # fmt: skip
    return [f"{trace.name}: {trace.about} ({trace.purpose})", *text, ""]


def _row(score: Score) -> tuple[str, ...]:
    return (
        score.policy, score.setting, f"{score.executor_hours:.1f}", f"{score.minutes_over_slo:.1f}",
        str(score.scalings), str(score.reversals), f"{score.late_max_s:.0f} s",
    )  # fmt: skip


def as_json(scores: Sequence[Score], policy: Policy) -> dict[str, Any]:
    """Describe scores as JSON values; the points of their plots left out."""
    return {
        "policy": asdict(policy),
        "scores": [{name: value for name, value in asdict(one).items() if name != "points"} for one in scores],
    }
