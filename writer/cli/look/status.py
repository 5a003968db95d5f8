"""`headrace status`: pipelines by their driver, or by table and Kafka without one; one release's or several ones'."""

import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from functools import partial
from typing import Annotated, Any, Literal

import typer
from rich.console import Console, Group, RenderableType
from rich.live import Live
from rich.text import Text

from headrace.writer.config.loader import load
from headrace.writer.core.units import show_duration
from headrace.writer.output import fleet_screen, fleet_tables
from headrace.writer.output.cli_options import ConfigFile, Pipelines, duration_of
from headrace.writer.output.command import Depends, command
from headrace.writer.output.fleet_screen import Sort
from headrace.writer.output.report import Report, Screen
from headrace.writer.output.status_screen import line
from headrace.writer.output.tables import emit, show
from headrace.writer.status.collection import check_code, collect_releases, collect_status, exit_code, open_cluster

# Pipelines of which all lines are shown.
_BLOCKS_MAX = 4


@dataclass(frozen=True)
class StatusView:
    """Which pipelines are shown, and how."""

    # All lines of each, also of many.
    long: bool = False
    # The tables of routes, in place of the pipelines.
    tables: bool = False
    search: str = ""
    sort: Sort = "worst"
    # A line for each group.
    group: bool = False
    # A line for each pipeline: its health.
    check: bool = False


@dataclass(frozen=True)
class StatusReport(Report):
    """How pipelines are at one moment. `state`: the document of `headrace.writer.status.collection`."""

    state: Mapping[str, Any]
    view: StatusView = field(default_factory=StatusView)

    @property
    def exit_code(self) -> Literal[0, 1]:
        """1 where a person must act."""
        if self.view.check:
            return check_code(self.state)
        return exit_code(self.state)

    def document(self) -> Mapping[str, Any]:
        """Return the state."""
        return self.state

    def render(self, out: Console) -> None:
        """Draw the page."""
        show(self.page(), out)

    def page(self) -> RenderableType:
        """Return blocks of lines for few pipelines, a table for many, or for groups of them."""
        view = self.view
        rows = fleet_screen.rows(self._releases, "" if view.tables else view.search, view.sort)
        if view.check:
            return fleet_screen.verdicts(rows)
        if view.tables:
            return fleet_tables.tables(rows, view.search, by_group=view.group)
        is_small = "releases" not in self.state and len(self.state["pipelines"]) <= _BLOCKS_MAX
        if view.long or (is_small and not view.search and not view.group):
            return fleet_screen.long(rows)
        return fleet_screen.fleet(rows, by_group=view.group)

    def print_lines(self, out: Console) -> None:
        """Print a line for each pipeline, for a pipe."""
        for release, document in self._releases.items():
            if "error" in document:
                out.out(fleet_screen.silent_line(release, document["error"], self.state["at"]), highlight=False)
            for name, pipeline in document.get("pipelines", {}).items():
                full_name = f"{release}/{name}" if release else name
                out.out(line(full_name, pipeline, self.state["at"]), highlight=False)

    @property
    def _releases(self) -> Mapping[str, Any]:
        releases: Mapping[str, Any] = self.state.get("releases", {"": self.state})
        return releases


Collect = Callable[[], Mapping[str, Any]]


def choose_collection(
    config: ConfigFile,
    pipeline: Pipelines = None,
    all_: Annotated[
        list[str] | None,
        typer.Option(
            "--all", help="A driver's URL, or a configuration file: all releases in one table; may be repeated."
        ),
    ] = None,
) -> Collect:
    """Return what collects the present state: of pipelines of a file, or of several releases. Raises ConfigError."""
    if all_:
        return partial(collect_releases, all_)
    settings = load(config)
    names = settings.chosen(pipeline)
    cluster = open_cluster(settings)
    return lambda: collect_status(settings, names, cluster, datetime.now(UTC))


def watch_status(reports: Iterator[StatusReport], screen: Screen, interval: timedelta) -> Literal[0, 1]:
    """Show each report until Ctrl-C, on a terminal in the place of the one before. Returns the last one's exit code."""
    if screen.as_json:
        return _show_each(reports, lambda report: emit(report.document()))
    if not screen.out.is_terminal:
        return _show_each(reports, lambda report: report.print_lines(screen.out))
    foot = Text(f"\nevery {show_duration(interval)}, Ctrl-C ends", style="dim")
    with Live(console=screen.out, auto_refresh=False) as live:
        return _show_each(reports, lambda report: live.update(Group(report.page(), foot), refresh=True))


def _show_each(reports: Iterator[StatusReport], draw: Callable[[StatusReport], None]) -> Literal[0, 1]:
    code: Literal[0, 1] = 0
    with suppress(KeyboardInterrupt):
        for report in reports:
            draw(report)
            code = report.exit_code
    return code


def _collect_again(collect: Collect, view: StatusView, interval: timedelta) -> Iterator[StatusReport]:
    yield StatusReport(collect(), view)
    while True:
        time.sleep(interval.total_seconds())
        yield StatusReport(collect(), view)


@command(
    exits={
        0: "shown",
        1: "a pipeline failed or was given up, its table cannot be read, a release does not answer, or with --check a "
        "pipeline is critical",
        2: "configuration",
    },
    json_form="one document; with --watch, a line for each look",
)
def status(
    collect: Annotated[Collect, Depends(choose_collection)],
    tables: Annotated[bool, typer.Option("--tables", help="List the tables of routes, those behind first.")] = False,
    search: Annotated[
        str, typer.Option("--search", help="Only pipelines whose name, release, state or table has this in it.")
    ] = "",
    sort: Annotated[
        Sort, typer.Option("--sort", help=f"Order of the pipelines: {', '.join(fleet_screen.SORTS)}.")
    ] = "worst",
    group: Annotated[
        bool,
        typer.Option(
            "--group",
            help="A line for each group: what names have in common up to the last dot, or else up to the last - or _.",
        ),
    ] = False,
    long: Annotated[
        bool, typer.Option("--long", help=f"All lines of each pipeline, also of more than {_BLOCKS_MAX}.")
    ] = False,
    check: Annotated[
        bool,
        typer.Option(
            "--check", help="A line for each pipeline: ok, warning or critical, and why. Exit 1 for critical."
        ),
    ] = False,
    watch: Annotated[bool, typer.Option("--watch", help="Show it again and again, until Ctrl-C.")] = False,
    interval: Annotated[str, typer.Option("--interval", help="Time between two looks with --watch.")] = "2 s",
    *,
    screen: Screen,
) -> StatusReport | Literal[0, 1]:
    """Show how the pipelines are: lag, last commit, rates, dead letters, retention. Asks the driver, else the lake.

    A driver's executors too: how many are recommended, requested and registered, and the autoscaler's last decision.
    Of many pipelines, and of several releases, a line each, the worst first.
    """
    view = StatusView(long, tables, search, sort, group, check)
    if not watch:
        return StatusReport(collect(), view)
    pause = duration_of("--interval", interval)
    return watch_status(_collect_again(collect, view, pause), screen, pause)
