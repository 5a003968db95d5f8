"""Scores as a table on a terminal, as JSON, and as a picture."""

from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path

from rich.console import Console

from headrace.autoscaler.decision.policy import Policy
from headrace.bench.picture import save_picture
from headrace.bench.simulation.run import Score
from headrace.bench.simulation.trace import Trace
from headrace.writer.core.errors import HeadraceError
from headrace.writer.output.report import SCREEN_ONLY, Report
from headrace.writer.output.tables import Column, TextTable, sentence

_COLUMNS = [
    Column("policy"),
    Column("setting", width_max=80),
    *(Column(name, right=True) for name in ("executor-hours", "min over SLO", "changes", "reversals", "latest")),
]


@dataclass(frozen=True)
class SimulationReport(Report):
    """What policies cost and were worth, on all traces."""

    policy: Policy
    scores: Sequence[Score]
    # Why there is no picture.
    failure: HeadraceError | None = field(default=None, metadata=SCREEN_ONLY)

    def render(self, out: Console) -> None:
        """Draw nothing: the scores of each trace are on the page since it was played."""


def show_scores(out: Console, trace: Trace, scores: Sequence[Score]) -> None:
    """Show the scores of one trace."""
    sentence(out, f"{trace.name}: {trace.about} ({trace.purpose})")
    TextTable(out, _COLUMNS).add([_row(score) for score in scores])
    out.print()


def _row(score: Score) -> tuple[str, ...]:
    return (
        score.policy,
        score.setting,
        f"{score.executor_hours:.1f}",
        f"{score.minutes_over_slo:.1f}",
        str(score.scalings),
        str(score.reversals),
        f"{score.late_max_s:.0f} s",
    )


_COLOURS = ("#1f6f8b", "#d97b29", "#8c8c8c", "#7a4f9a", "#4c9a52", "#c04f5e", "#b8a13a", "#5b5b8c", "#999999")
_INK = "#222222"
_FAINT = "#777777"


def draw(trace: Trace, scores: Sequence[Score], path: Path) -> None:
    """Write the picture; the suffix of `path` says in which format."""
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    figure = Figure(figsize=(9, 6.5), layout="constrained")
    FigureCanvasAgg(figure)
    load, late, executors = figure.subplots(3, 1, sharex=True, height_ratios=(1, 1, 1.4))
    hours = [point.at_s / 3600 for point in scores[0].points]
    load.fill_between(hours, [p.arriving_per_s / 1000 for p in scores[0].points], color="#d6dee3", linewidth=0)
    load.set_ylabel("K records/s", color=_FAINT)
    load.set_title(f"{trace.name}: {trace.about}", loc="left", color=_INK, fontsize=11)
    for score, colour in zip(scores, _COLOURS, strict=False):
        width = 1.6 if score is scores[0] else 0.9
        label = score.policy if "defaults" in (score.setting, score.policy[-8:]) else f"{score.policy}, {score.setting}"
        late.plot(hours, [p.late_s / 60 for p in score.points], color=colour, linewidth=width)
        wanted = [p.wanted for p in score.points]
        executors.step(hours, wanted, color=colour, linewidth=width, where="post", label=label)
    late.set_ylabel("min late beyond\nmax_delay", color=_FAINT)
    executors.set_ylabel("executors wanted", color=_FAINT)
    executors.set_ylim(bottom=0)
    executors.set_xlabel("hour", color=_FAINT, loc="left")
    figure.legend(loc="outside lower center", fontsize=8, frameon=False, ncols=3)
    for axes in (load, late, executors):
        for from_s, until_s in trace.outages:
            axes.axvspan(from_s / 3600, until_s / 3600, color="#f3dede", linewidth=0, zorder=0)
        axes.tick_params(length=0, colors=_FAINT)
        axes.grid(visible=True, color="#ececec")
        axes.set_axisbelow(True)
        for side in ("top", "right", "left", "bottom"):
            axes.spines[side].set_visible(False)
    save_picture(figure, path, dpi=140)
