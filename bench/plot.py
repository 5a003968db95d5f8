"""Draws the figures: a bar for each contender, with its events in a CPU-second."""

from collections.abc import Sequence
from pathlib import Path

from headrace.bench.figures import Run, Spread, contenders_of, summary
from headrace.bench.machine import Machine
from headrace.bench.picture import save_picture
from headrace.bench.rounds import Setting

_OURS = "#1f6f8b"
_OTHER = "#b8c4cc"
_INK = "#222222"
_FAINT = "#777777"
_NOTHING = Spread(0, 0, 0)


def draw(runs: Sequence[Run], setting: Setting, machine: Machine, path: Path) -> None:
    """Write the picture; the suffix of `path`, one of FORMATS, says in which format. Medians, with least and most."""
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    # The first contender is on top. A warm window that is too short gives an empty bar.
    names = contenders_of(runs)[::-1]
    spreads = [summary(runs, name).warm_events_per_cpu_s or _NOTHING for name in names]
    medians = [spread.median / 1000 for spread in spreads]
    figure = Figure(figsize=(8, 1.3 + 0.55 * len(names)), layout="constrained")
    FigureCanvasAgg(figure)
    axes = figure.add_subplot()
    colours = [_OURS if name == "headrace" else _OTHER for name in names]
    errors = [
        [(spread.median - spread.least) / 1000 for spread in spreads],
        [(spread.most - spread.median) / 1000 for spread in spreads],
    ]
    axes.barh(names, medians, color=colours, height=0.62)
    if setting.repeats > 1:
        axes.errorbar(medians, names, xerr=errors, fmt="none", ecolor=_INK, elinewidth=1, capsize=3)
    for name, spread in zip(names, spreads, strict=True):
        axes.annotate(
            "window too short" if spread is _NOTHING else f"{spread.median / 1000:,.0f}",
            (spread.most / 1000, name),
            xytext=(6, 0),
            textcoords="offset points",
            va="center",
            color=_INK,
        )
    axes.set_xlim(0, (max(spread.most for spread in spreads) / 1000 or 1) * 1.12)
    axes.set_xlabel("thousand events per CPU-second", color=_FAINT, loc="left")
    axes.set_title(_title(setting), loc="left", color=_INK, fontsize=11)
    axes.tick_params(length=0, colors=_FAINT)
    axes.tick_params(axis="y", labelcolor=_INK)
    for side in ("top", "right", "left", "bottom"):
        axes.spines[side].set_visible(False)
    axes.xaxis.grid(visible=True, color="#e6e6e6")
    axes.set_axisbelow(True)
    figure.text(0.995, 0.01, f"{machine.cores} cores, {machine.versions}", ha="right", color=_FAINT, fontsize=7)
    save_picture(figure, path, dpi=160)


def _title(setting: Setting) -> str:
    times = ""
    if setting.repeats > 1:
        times = f", median of {setting.repeats}, whiskers least and most"
    return f"{setting.events:,} events of {_sets(setting)}, warm{times}"


def _sets(setting: Setting) -> str:
    names = [data.name for data in setting.data_sets]
    return f"{'set' if len(names) == 1 else 'sets'} {', '.join(names)}"
