"""The demo's live panel: records produced and written, lag, commits, in six lines."""

from dataclasses import dataclass, field
from datetime import timedelta

from rich import box
from rich.align import Align
from rich.console import Group, RenderableType
from rich.panel import Panel
from rich.progress_bar import ProgressBar
from rich.table import Table
from rich.text import Text

from writer.core.text import plural

# A wider panel is harder to read.
WIDTH_MAX = 100
_MIB = 2**20
# From the first width on there are three blocks side by side, from the second on rates.
_WIDE = 76
_MIDDLE = 52
# The ratios of the blocks' widths.
_RATIOS = (34, 16, 24)


@dataclass(frozen=True)
class View:
    """What is to be seen at a moment. Counts are of messages; rates are per second."""

    title: str
    elapsed: timedelta
    # The bars run up to this count.
    total: int
    produced: int = 0
    # In both tables.
    committed: int = 0
    rate_in: float = 0.0
    rate_out: float = 0.0
    # The age of the oldest message that is not committed.
    lag: timedelta = field(default=timedelta(0))
    commits: int = 0
    files: int = 0
    bytes: int = 0
    buckets: int = 0
    # Buckets that the newest commit wrote to.
    buckets_last: int = 0
    columns: int = 0
    rows: int = 0
    quarantined: int = 0
    dead_letters: int = 0

    @property
    def behind(self) -> int:
        """Messages in Kafka that are in neither table."""
        return max(0, self.produced - self.committed)


def render(view: View, width: int) -> RenderableType:
    """Draw the panel for a terminal of `width` columns."""
    # A terminal echoes ^C, and one more line would break the redrawing.
    width = min(width, WIDTH_MAX) - 2
    inside = Group(_bars(view, width), "", _pairs(view, width))
    return Panel(
        inside,
        title=f"[bold]{view.title}[/]",
        title_align="left",
        subtitle=duration(view.elapsed),
        subtitle_align="right",
        box=box.ROUNDED,
        border_style="dim",
        padding=(0, 1),
        width=width,
    )


def sentence(view: View) -> str:
    """One line of the same for a file, a pipe or a log."""
    behind = f"lag {view.behind:,} ({view.lag.total_seconds():.1f} s)" if view.behind else "no lag"
    return (
        f"commit {view.commits}: {view.committed:,} of {view.total:,} in the lake, {behind}, "
        f"{plural(view.files, 'file')}, {view.bytes / _MIB:.1f} MiB, {plural(view.buckets, 'bucket')}"
    )


def duration(value: timedelta) -> str:
    """`0:07`, `12:30` or `1:00:00`."""
    minutes, seconds = divmod(int(value.total_seconds()), 60)
    hours, minutes = divmod(minutes, 60)
    if hours:
        return f"{hours}:{minutes:02d}:{seconds:02d}"
    return f"{minutes}:{seconds:02d}"


def _bars(view: View, width: int) -> Table:
    table = Table.grid(padding=(0, 1, 0, 0), expand=True)
    table.add_column(no_wrap=True, overflow="crop")
    table.add_column(ratio=1)
    table.add_column(no_wrap=True, overflow="crop", justify="right")
    if width >= _MIDDLE:
        table.add_column(justify="right", no_wrap=True, min_width=10)
    for name, style, count, rate in (
        ("in Kafka", "cyan", view.produced, view.rate_in),
        ("in the lake", "green", view.committed, view.rate_out),
    ):
        bar = ProgressBar(
            total=max(1, view.total), completed=count, style="grey30", complete_style=style, finished_style=style
        )
        cells: list[RenderableType] = [name, bar, Text.assemble((f"{count:,}", "bold"), (f" of {view.total:,}", "dim"))]
        if width >= _MIDDLE:
            cells.append(f"{rate:,.0f}/s" if rate >= 1 else "")
        table.add_row(*cells)
    return table


def _pairs(view: View, width: int) -> RenderableType:
    """Three blocks of labels with their values, side by side if the width allows."""
    lag = Text("none")
    if view.behind:
        lag = Text(f"{view.behind:,} events, {view.lag.total_seconds():.1f} s", "yellow")
    buckets = f"{view.buckets:,}"
    if view.commits:
        buckets += f", {view.buckets_last} in last commit"
    blocks: list[list[tuple[str, str | Text]]] = [
        [
            ("lag", lag),
            ("buckets", buckets),
            ("columns", f"{view.columns:,}"),
        ],
        [("commits", f"{view.commits:,}"), ("files", f"{view.files:,}"), ("MiB", f"{view.bytes / _MIB:.1f}")],
        [
            ("rows", f"{view.rows:,}"),
            ("quarantined", f"{view.quarantined:,}"),
            ("dead letters", f"{view.dead_letters:,}"),
        ],
    ]
    if width < _WIDE:
        return _block([*blocks[0][:2], *blocks[1]])
    first = _block(blocks[0])
    second = _block(blocks[1], digits=5)
    third = _block(blocks[2], digits=8)
    table = Table.grid(expand=True)
    for ratio in _RATIOS:
        table.add_column(ratio=ratio)
    table.add_row(first, Align.center(second), Align.right(third))
    return table


def _block(pairs: list[tuple[str, str | Text]], *, digits: int = 0) -> Table:
    """Labels, and values that line up on the right if they are numbers of so many `digits`."""
    table = Table.grid(padding=(0, 2, 0, 0))
    table.add_column(style="dim", no_wrap=True, overflow="crop", min_width=0 if digits else 10)
    table.add_column(no_wrap=True, overflow="crop", justify="right" if digits else "left", min_width=digits)
    for label, value in pairs:
        table.add_row(label, value)
    return table
