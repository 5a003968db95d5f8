"""`headrace status`: pipelines by their driver, or by table and Kafka without one; one release's or several ones'."""

import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import suppress
from datetime import UTC, datetime, timedelta
from functools import partial
from typing import Annotated, Any

import typer
from rich.console import Console, Group, RenderableType
from rich.live import Live
from rich.text import Text

from writer.config.loader import load
from writer.config.pipelines import Config
from writer.core.units import show_duration
from writer.output import fleet_screen, fleet_tables
from writer.output.cli_options import ConfigFile, Pipelines, duration_of, json_option
from writer.output.fleet_screen import Sort
from writer.output.status_screen import line
from writer.output.tables import emit, emit_whole, show
from writer.status.collection import check_code, collect_releases, collect_status, exit_code, open_cluster

# Pipelines of which all lines are shown.
_BLOCKS_MAX = 4

Screen = Callable[[Mapping[str, Any]], RenderableType]


def run_status(
    states: Iterable[Mapping[str, Any]],
    screen: Screen,
    *,
    every: timedelta | None,
    as_json: bool,
    console: Console,
    code_of: Callable[[Mapping[str, Any]], int] = exit_code,
) -> int:
    """Show each state: once, or again and again until Ctrl-C. Returns the exit code of the last one."""
    code = 0
    with suppress(KeyboardInterrupt):
        if every is not None and console.is_terminal and not as_json:
            with Live(console=console, auto_refresh=False) as live:
                for state in states:
                    foot = Text(f"\nevery {show_duration(every)}, Ctrl-C ends", style="dim")
                    live.update(Group(screen(state), foot), refresh=True)
                    code = code_of(state)
        else:
            for state in states:
                _write(state, screen, console, as_json=as_json, lines=every is not None)
                code = code_of(state)
    return code


def _write(state: Mapping[str, Any], screen: Screen, console: Console, *, as_json: bool, lines: bool) -> None:
    if as_json and lines:
        emit(state)
    elif as_json:
        emit_whole(state)
    elif lines:
        _print_lines(state)
    else:
        show(screen(state), console)


def _print_lines(state: Mapping[str, Any]) -> None:
    """Print a line for each pipeline, for a pipe."""
    for release, document in state.get("releases", {"": state}).items():
        if "error" in document:
            print(fleet_screen.silent_line(release, document["error"], state["at"]), flush=True)  # noqa: T201
        for name, pipeline in document.get("pipelines", {}).items():
            full_name = f"{release}/{name}" if release else name
            print(line(full_name, pipeline, state["at"]), flush=True)  # noqa: T201


def choose_screen(
    *, long: bool, tables: bool, search: str, sort: Sort, group: bool = False, check: bool = False
) -> Screen:
    """Return what shows a state: blocks of lines for few pipelines, a table for many, or for groups of them.

    `check`: a line for each pipeline.
    """

    def screen(state: Mapping[str, Any]) -> RenderableType:
        releases = state.get("releases", {"": state})
        rows = fleet_screen.rows(releases, "" if tables else search, sort)
        if check:
            return fleet_screen.verdicts(rows)
        if tables:
            return fleet_tables.tables(rows, search, by_group=group)
        is_small = "releases" not in state and len(state["pipelines"]) <= _BLOCKS_MAX
        if long or (is_small and not search and not group):
            return fleet_screen.long(rows)
        return fleet_screen.fleet(rows, by_group=group)

    return screen


def _collect_again(collect: Callable[[], dict[str, Any]], every: timedelta | None) -> Iterator[dict[str, Any]]:
    """Yield the present state, once or again and again."""
    yield collect()
    while every is not None:
        time.sleep(every.total_seconds())
        yield collect()


def _collector(config: Config, pipelines: list[str] | None) -> Callable[[], dict[str, Any]]:
    names = config.chosen(pipelines)
    cluster = open_cluster(config)
    return lambda: collect_status(config, names, cluster, datetime.now(UTC))


def status(
    config: ConfigFile,
    pipeline: Pipelines = None,
    all_: Annotated[
        list[str] | None,
        typer.Option(
            "--all", help="A driver's URL, or a configuration file: all releases in one table; may be repeated."
        ),
    ] = None,
    tables: Annotated[bool, typer.Option("--tables", help="List the tables of routes, those behind first.")] = False,
    search: Annotated[
        str, typer.Option("--search", help="Only pipelines whose name, release, state or table has this in it.")
    ] = "",
    sort: Annotated[
        str, typer.Option("--sort", help=f"Order of the pipelines: {', '.join(fleet_screen.SORTS)}.")
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
    as_json: Annotated[bool, json_option("one document; with --watch, a line for each look")] = False,
) -> None:
    """Show how the pipelines are: lag, last commit, rates, dead letters, retention. Asks the driver, else the lake.

    A driver's executors too: how many are recommended, requested and registered, and the autoscaler's last decision.
    Of many pipelines, and of several releases, a line each, the worst first.

    Exit codes: 0 shown, 1 a pipeline failed or was given up, its table cannot be read, a release does not answer, or
    with --check a pipeline is critical, 2 configuration.
    """
    every = duration_of("--interval", interval) if watch else None
    order = next((name for name in fleet_screen.SORTS if name == sort), None)
    if order is None:
        raise typer.BadParameter(f"{sort!r} is none of {', '.join(fleet_screen.SORTS)}", param_hint="--sort")
    collect = partial(collect_releases, all_) if all_ else _collector(load(config), pipeline)
    screen = choose_screen(long=long, tables=tables, search=search, sort=order, group=group, check=check)
    states = _collect_again(collect, every)
    console = Console(highlight=False)
    code_of = check_code if check else exit_code
    code = run_status(states, screen, every=every, as_json=as_json, console=console, code_of=code_of)
    raise typer.Exit(code)
