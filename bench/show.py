"""Shows the bench's progress and figures: with the same words on a terminal and in a file, and as JSON."""

import json
import time
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any, Self

from rich.console import Console
from rich.progress import BarColumn, Progress, SpinnerColumn, TaskID, TextColumn
from rich.table import Table

from headrace.bench.figures import (
    MARKS_MIN,
    WARM_FROM,
    Cost,
    Run,
    Spread,
    Summary,
    contenders_of,
    costs,
    has_warm_window,
    parts,
    ratio,
    ratios,
    short_windows,
    summary,
    warm,
    whole,
)
from headrace.bench.machine import Machine
from headrace.bench.rounds import SPARSE, Setting
from headrace.writer.output.tables import NumberTable

PUBLISHED = "--events 24M --warm-from 0.67 --contenders a,h,g,d,b,f"
# Where the figure of a run ends in its line.
_FIGURE_END = 54
# The columns of a terminal that the results need.
_WIDTH = 86


class Screen:
    """One line for each thing that is done; on a terminal, a bar for what goes on."""

    def __init__(self, console: Console) -> None:
        self._console = console
        self._began = time.monotonic()
        self._bars = Progress(
            SpinnerColumn(),
            TextColumn("{task.description:<30}"),
            BarColumn(24),
            TextColumn("{task.fields[far]}"),
            console=console,
            transient=True,
            disable=not console.is_terminal,
        )
        self._task: TaskID | None = None

    def __enter__(self) -> Self:
        self._bars.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._bars.stop()

    def show_progress(self, sentence: str) -> None:
        """Print a sentence."""
        self._console.print(sentence, soft_wrap=True)

    def begin(self, doing: str, events: int) -> None:
        """Show a bar for what begins."""
        self._began = time.monotonic()
        self._remove()
        self._task = self._bars.add_task(doing, total=events or None, far="")

    def show_events(self, events: int) -> None:
        """Move the bar."""
        if self._task is not None:
            self._bars.update(self._task, completed=events, far=f"{events:,} events" if events else "starting")

    def finish_step(self, step: str) -> None:
        """Print the line of what is done, with its seconds."""
        self._remove()
        self._console.print(f"{mark(self._console)} {step:<68}[dim]{time.monotonic() - self._began:7.1f} s[/]")

    def show_run(self, run: Run) -> None:
        """Print the line of a run."""
        title = f"{run.contender}, repeat {run.repeat}"
        figure = f"{run.events:,} events at once"
        if has_warm_window(run):
            figure = f"{_count(warm(run).events_per_cpu_s)} events/CPU-s"
        elif len(run.marks) > 1:
            figure = "warm window too short"
        self.finish_step(f"{title} {figure:>{_FIGURE_END - len(title) - 1}}, rows checked")

    def _remove(self) -> None:
        if self._task is not None:
            self._bars.remove_task(self._task)
            self._task = None


def mark(console: Console) -> str:
    """Return the sign of what is done."""
    if console.encoding.startswith("utf"):
        return "[green]✓[/]"
    return "[green]ok[/]"


def header(setting: Setting, machine: Machine) -> Table:
    """Tell what will be run, on what."""
    table = Table.grid(padding=(0, 2))
    times = "once" if setting.repeats == 1 else f"{setting.repeats} times in turn"
    table.title = f"[bold]headrace bench[/]: {setting.events:,} events, every contender {times}"
    table.title_justify = "left"
    table.title_style = ""
    table.add_column(style="bold", no_wrap=True)
    table.add_column(overflow="fold")
    for contender in setting.contenders:
        table.add_row(contender.name, contender.about)
    for index, data in enumerate(setting.data_sets):
        table.add_row("" if index else "events", f"{data.name}: {data.about}")
    if names := incomplete_contenders(setting):
        table.add_row("left out", f"{', '.join(names)} on sets that only headrace reads here")
    if setting.partitions:
        counts = ", ".join(f"{each:,}" for each in setting.partitions)
        table.add_row(
            "topics", f"of {counts} partitions, with {SPARSE} events a partition, and with {setting.events:,}"
        )
    else:
        table.add_row("commits", f"of at most {setting.batch_events:,} events")
    table.add_row("machine", str(machine))
    table.add_row("versions", machine.versions)
    return table


def results(runs: Sequence[Run], width: int) -> Table:
    """Tabulate the medians, closer together where the terminal is narrow."""
    close = width < _WIDTH
    table = NumberTable(box=None, padding=(0, 1), pad_edge=False, collapse_padding=close, header_style="bold")
    table.add_column("", no_wrap=True)
    for title in (
        "warm\nevents\n/CPU-s",
        "\nMB\n/CPU-s",
        "\nevents\n/s",
        "\nslots\nbusy",
        "\nJVM's\nshare",
        "whole\nevents\n/CPU-s",
        "\n\ns",
        "peak\nRSS\nGiB",
        "table\n\nfiles",
        "\n\nMiB",
    ):
        table.add_column(title, justify="right", no_wrap=True)
    for name in contenders_of(runs):
        table.add_row(name, *_cells(summary(runs, name)))
    return table


def _cells(summary_: Summary) -> list[str]:
    return [
        *_warm_cells(summary_),
        f"{_count(summary_.whole_events_per_cpu_s.median)}{_plus_minus(summary_.whole_events_per_cpu_s)}",
        f"{summary_.whole_s.median:.0f}",
        f"{summary_.rss_peak_bytes.median / 2**30:.1f}",
        f"{summary_.files.median:,.0f}",
        f"{summary_.bytes.median / 2**20:,.0f}",
    ]


def _warm_cells(summary_: Summary) -> list[str]:
    cpu = summary_.warm_events_per_cpu_s
    megabytes = summary_.warm_megabytes_per_cpu_s
    clock = summary_.warm_events_per_s
    busy_share = summary_.warm_busy_share
    jvm_share = summary_.warm_jvm_share
    if cpu is None or megabytes is None or clock is None or busy_share is None or jvm_share is None:
        return ["too short", "", "", "", ""]
    return [
        f"[bold]{_count(cpu.median)}[/]{_plus_minus(cpu)}",
        f"{megabytes.median:.1f}",
        _count(clock.median),
        f"{busy_share.median:.0%} of {summary_.slots}",
        f"{jvm_share.median:.0%}",
    ]


def by_partitions(costs: Sequence[Cost]) -> Table:
    """Tabulate what each topic took each contender: sparse and dense, of few partitions and of many."""
    table = NumberTable(box=None, padding=(0, 1), pad_edge=False, header_style="bold")
    for title in ("partitions", "events\neach", "\nevents"):
        table.add_column(title, justify="right", no_wrap=True)
    table.add_column("", no_wrap=True)
    for title in ("whole\ns", "batches\ns", "whole\nCPU-s", "table\nfiles"):
        table.add_column(title, justify="right", no_wrap=True)
    for cost in costs:
        table.add_row(
            f"{cost.partitions:,}",
            f"{cost.events_per_partition:,}",
            f"{cost.events:,}",
            cost.contender,
            f"{cost.whole_s.median:.0f}",
            f"[bold]{cost.batches_s.median:.1f}[/]{_plus_minus(cost.batches_s)}" if cost.batches_s else "",
            f"{cost.cpu_s.median:.0f}",
            f"{cost.files.median:,.0f}",
        )
    return table


def incomplete_contenders(setting: Setting) -> list[str]:
    """Return the names of the contenders that cannot read all sets."""
    return [
        contender.name
        for contender in setting.contenders
        if not all(contender in setting.contenders_on(data) for data in setting.data_sets)
    ]


def comparison(runs: Sequence[Run], setting: Setting) -> list[str]:
    """Say how the first contender compares with the others, and other sets with the first one, a sentence each."""
    first_set, *other_sets = setting.data_sets
    first, *others = setting.contenders_on(first_set)
    sentences = []
    for other in others:
        title = f"{first.name} against {other.name}"
        sentences.append(_comparison(runs, title, first.name, other.name, "events of a CPU-second"))
    for data in other_sets:
        for contender in setting.contenders_on(data):
            if contender in (first, *others):
                title = f"{data.name} against {first_set.name}"
                if contender != first:
                    title += f", {contender.name}"
                other_name = setting.label(contender, data)
                sentences.append(_comparison(runs, title, contender.name, other_name, "CPU-seconds of an event"))
    return sentences


def _comparison(runs: Sequence[Run], title: str, contender: str, other: str, unit: str) -> str:
    entire = ratio(runs, contender, other, whole).median
    if {contender, other} & set(short_windows(runs)):
        return f"{title:<32}no ratio of the warm {unit}, whole {entire:.2f}"
    steady = ratio(runs, contender, other)
    return f"{title:<32}[bold]{steady.median:.2f}[/] times the warm {unit}{_range(steady)}, whole {entire:.2f}"


def short_window_sentences(runs: Sequence[Run]) -> list[str]:
    """Say which contenders have a warm window that is too short, a sentence each."""
    return [
        f"too short: the warm window of {name} has {marks} {'mark' if marks == 1 else 'marks'}, and {MARKS_MIN} are "
        "needed for a figure. Take more --events, or a smaller --warm-from."
        for name, marks in short_windows(runs).items()
    ]


def legend(warm_from: float = WARM_FROM) -> str:
    """Say what the columns mean."""
    return (
        f"warm: from the mark at {warm_from:.0%} of the events to the last, {MARKS_MIN} marks or more. "
        "whole: from start to end.\n"
        "CPU-s: user and system seconds of the process tree. MB: 10^6 bytes of values.\n"
        "slots busy: CPU-s divided by warm seconds times slots, the tasks that may run at once.\n"
        "RSS counts a page that processes share once for each of them."
    )


def profile(runs: Sequence[Run]) -> Table:
    """Tabulate where the warm processor time goes, the dearest first, of contenders with a long enough window."""
    names = [name for name in contenders_of(runs) if name not in short_windows(runs)]
    columns = {name: _mean([parts(run) for run in runs if run.contender == name]) for name in names}
    table = NumberTable(box=None, padding=(0, 1), pad_edge=False, header_style="bold")
    table.title = "CPU microseconds of a warm event"
    table.title_justify = "left"
    table.title_style = "bold"
    table.add_column("")
    for name in names:
        table.add_column(name, justify="right")
    every = {part for column in columns.values() for part in column}
    for part in sorted(every, key=lambda part: -max(column.get(part, 0) for column in columns.values())):
        values = [column.get(part, 0) for column in columns.values()]
        if max(values) >= 0.005:  # noqa: PLR2004 - what rounds to nothing says nothing
            table.add_row(part, *(f"{value:.2f}" if value else "" for value in values))
    table.add_row("all", *(f"{sum(column.values()):.2f}" for column in columns.values()), style="bold")
    return table


def _mean(columns: list[dict[str, float]]) -> dict[str, float]:
    return {
        part: sum(column.get(part, 0) for column in columns) / len(columns)
        for part in {part for column in columns for part in column}
    }


def _range(spread: Spread) -> str:
    if spread.least == spread.most:
        return ""
    return f" ({spread.least:.2f} to {spread.most:.2f})"


def _plus_minus(spread: Spread) -> str:
    return "" if spread.least == spread.most else f" ±{spread.share:.0%}"


def _count(value: float) -> str:
    """Write a rate with three digits that mean something."""
    digits = len(f"{value:.0f}")
    return f"{round(value, min(0, 3 - digits)):,.0f}"


def smaller_setting_hint(setting: Setting) -> str | None:
    """Name the published setting when this is a smaller one."""
    if setting.events >= 24_000_000 and setting.warm_from > 0.6:  # noqa: PLR2004
        return None
    return f"published setting: {PUBLISHED} (JVMs get faster for a long time, and small commits burden Spark most)"


def as_json(runs: Sequence[Run], setting: Setting, machine: Machine) -> dict[str, Any]:
    """Return the whole result as JSON values: settings, medians, ratios, and every run as it was measured."""
    return {
        "setting": {
            "data": ",".join(data.name for data in setting.data_sets),
            "events": setting.events,
            "event_bytes": runs[0].value_bytes / runs[0].events,
            "repeats": setting.repeats,
            "slots": setting.slots,
            **({} if setting.partitions else {"batch_events": setting.batch_events, "warm_from": setting.warm_from}),
        },
        "machine": asdict(machine),
        **({"topics": [asdict(cost) for cost in costs(runs)]} if setting.partitions else _race(runs)),
        "runs": [asdict(run) for run in runs],
    }


def write_json(runs: Sequence[Run], setting: Setting, machine: Machine, path: Path) -> None:
    """Write the whole result. Raises OSError."""
    path.write_text(json.dumps(as_json(runs, setting, machine), indent=1) + "\n", encoding="utf-8")


def _race(runs: Sequence[Run]) -> dict[str, Any]:
    return {
        "warm_marks_min": MARKS_MIN,
        "contenders": {name: asdict(summary(runs, name)) for name in contenders_of(runs)},
        "warm_events_per_cpu_s_ratios": _ratios_as_json(runs, ratios(runs)),
        "whole_events_per_cpu_s_ratios": _ratios_as_json(runs, ratios(runs, whole)),
    }


def _ratios_as_json(runs: Sequence[Run], compared: Mapping[str, Spread | None]) -> dict[str, Any]:
    first = contenders_of(runs)[0]
    return {f"{first} / {other}": None if spread is None else asdict(spread) for other, spread in compared.items()}
