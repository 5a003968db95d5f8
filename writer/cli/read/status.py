"""`headrace status`: pipelines by their driver, or by table and Kafka without one; one release's or several ones'."""

import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import asdict
from datetime import UTC, datetime, timedelta
from functools import cache, partial
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.console import Console, Group, RenderableType
from rich.live import Live
from rich.text import Text

from writer.clients.driver_endpoint import find_announcement, pipeline_of, status_at
from writer.clients.kafka import BrokerUnreachable, Cluster, probe_cluster
from writer.config.loader import load
from writer.config.pipelines import Config
from writer.core.errors import HeadraceError
from writer.core.text import iso
from writer.core.units import show_duration
from writer.output import fleet_screen, fleet_tables
from writer.output.cli_options import ConfigFile, Pipelines, duration_of, json_option
from writer.output.fleet_screen import Sort
from writer.output.status_screen import line
from writer.output.tables import emit, emit_whole, show
from writer.status import from_table
from writer.status.document import document

_KAFKA_WITHIN = timedelta(seconds=5)  # a person waits for the answer
_BLOCKS_MAX = 4  # pipelines of which all lines are shown
_ASKED_AT_ONCE = 16  # releases
_KEYS = {
    "state",
    "epoch",
    "lag",
    "rates",
    "limits",
    "totals",
    "commits",
    "last_commit",
}  # of a pipeline, in any release


Screen = Callable[[Mapping[str, Any]], RenderableType]


def run_status(
    looks: Iterable[Mapping[str, Any]], screen_of: Screen, *, every: timedelta | None, as_json: bool, console: Console
) -> int:
    """Show each look: once, or again and again until Ctrl-C. Returns 1 when a pipeline failed or cannot be read."""
    code = 0
    with suppress(KeyboardInterrupt):
        if every is not None and console.is_terminal and not as_json:
            with Live(console=console, auto_refresh=False) as live:
                for shown in looks:
                    foot = Text(f"\nevery {show_duration(every)}, Ctrl-C ends", style="dim")
                    live.update(Group(screen_of(shown), foot), refresh=True)
                    code = exit_code(shown)
        else:
            for shown in looks:
                _write(shown, screen_of, console, as_json=as_json, lines=every is not None)
                code = exit_code(shown)
    return code


def collect(config: Config, names: list[str], cluster: Cluster, now: datetime) -> dict[str, Any]:
    """Describe the pipelines as they are now, each by its driver, or else by its table and Kafka.

    Pipelines without a driver share one wait for a broker that does not answer.
    """
    shown = document((), now)
    asked: Cluster | BrokerUnreachable | None = None
    ask = cache(status_at)  # once for all pipelines of a driver
    for name in names:
        driver = find_announcement(config.checkpoints, name, config.s3.settings)
        found = None if driver is None else pipeline_of(ask(driver.url, driver.certificate), driver, name)
        if found is None:
            asked = asked or probe_cluster(cluster)
            view = from_table.view(name, config, asked, now)
            found = document([view], now, source="lake")["pipelines"][name]
        answers = found["source"] == "driver"
        shown["pipelines"][name] = {
            **found,
            "executors": found.get("executors"),
            "config": found.get("config"),
            "driver": None if driver is None else {**asdict(driver), "answers": answers},
        }
    return shown


def collect_all(places: Sequence[str]) -> dict[str, Any]:
    """Describe several releases as they are now. `places`: URLs of drivers, or configuration files; all at once."""
    with ThreadPoolExecutor(_ASKED_AT_ONCE) as pool:
        return {"at": iso(datetime.now(UTC)), "releases": dict(zip(places, pool.map(_release, places), strict=True))}


def _release(place: str) -> dict[str, Any]:
    """Describe one release; what does not answer has an `error`."""
    if place.startswith(("http://", "https://")):
        url = place.rstrip("/")
        return _of_driver(status_at(url), url)
    try:
        config = load(Path(place))
        return collect(config, list(config.pipelines), _cluster(config), datetime.now(UTC))
    except (HeadraceError, OSError) as error:
        return {"error": str(error)}


def _of_driver(found: dict[str, Any] | None, url: str) -> dict[str, Any]:
    """Return what a driver answered at a URL; what is no driver's answer becomes an `error`."""
    if found is None:
        return {"error": f"nothing at {url}/status answers as a driver does"}
    pipelines = found.get("pipelines")
    if isinstance(pipelines, dict) and all(isinstance(one, dict) and one.keys() >= _KEYS for one in pipelines.values()):
        return found
    what = "a supervisor" if "driver" in found and isinstance(pipelines, dict) else "another program"
    return {"error": f"{what} answers there. Give the URL of the driver (http.port)."}


def exit_code(shown: Mapping[str, Any]) -> int:
    """Return 1 when a pipeline has failed, its table cannot be read, or a release does not answer."""
    releases = shown.get("releases", {"": shown}).values()
    states = [one["state"] for release in releases for one in release.get("pipelines", {}).values()]
    return int(any("error" in one for one in releases) or any(one in ("failed", "unreadable") for one in states))


def _cluster(config: Config) -> Cluster:
    return Cluster(config.kafka.address, min(config.kafka.request_timeout, _KAFKA_WITHIN))


def _looks(look: Callable[[], dict[str, Any]], every: timedelta | None) -> Iterator[dict[str, Any]]:
    yield look()
    while every is not None:
        time.sleep(every.total_seconds())
        yield look()


def _write(
    shown: Mapping[str, Any], screen_of: Screen, console: Console, *, as_json: bool, lines: bool
) -> None:  # fmt: skip
    if as_json:
        (emit if lines else emit_whole)(shown)
    elif lines:
        for release, document_ in shown.get("releases", {"": shown}).items():
            if "error" in document_:
                print(fleet_screen.silent_line(release, document_["error"], shown["at"]), flush=True)  # noqa: T201
            for name, pipeline in document_.get("pipelines", {}).items():
                full = f"{release}/{name}" if release else name
                print(line(full, pipeline, shown["at"]), flush=True)  # noqa: T201 - one line each time, for a pipe
    else:
        show(screen_of(shown), console)


def _look(config: Config, only: list[str] | None) -> Callable[[], dict[str, Any]]:
    names, cluster = config.chosen(only), _cluster(config)
    return lambda: collect(config, names, cluster, datetime.now(UTC))


def chosen_screen(*, long: bool, tables: bool, search: str, sort: Sort, group: bool = False) -> Screen:
    """Return what shows a look: blocks of lines for few pipelines, a table for many, or for groups of them."""

    def shown(look: Mapping[str, Any]) -> RenderableType:
        releases = look.get("releases", {"": look})
        found = fleet_screen.rows(releases, "" if tables else search, sort)
        if tables:
            return fleet_tables.tables(found, search, by_group=group)
        few = "releases" not in look and len(look["pipelines"]) <= _BLOCKS_MAX
        if long or (few and not search and not group):
            return fleet_screen.long(found)
        return fleet_screen.fleet(found, by_group=group)

    return shown


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
    watch: Annotated[bool, typer.Option("--watch", help="Show it again and again, until Ctrl-C.")] = False,
    interval: Annotated[str, typer.Option("--interval", help="Time between two looks with --watch.")] = "2 s",
    as_json: Annotated[bool, json_option("one document; with --watch, a line for each look")] = False,
) -> None:
    """Show how the pipelines are: lag, last commit, rates, dead letters, retention. Asks the driver, else the lake.

    A driver's executors too: how many are recommended, requested and registered, and the autoscaler's last decision.
    Of many pipelines, and of several releases, a line each, the worst first.

    Exit codes: 0 shown, 1 a pipeline failed, its table cannot be read, or a release does not answer, 2 configuration.
    """
    every = duration_of("--interval", interval) if watch else None
    order = next((one for one in fleet_screen.SORTS if one == sort), None)
    if order is None:
        raise typer.BadParameter(f"{sort!r} is none of {', '.join(fleet_screen.SORTS)}", param_hint="--sort")
    look = partial(collect_all, all_) if all_ else _look(load(config), pipeline)
    screen = chosen_screen(long=long, tables=tables, search=search, sort=order, group=group)
    console = Console(highlight=False)
    code = run_status(_looks(look, every), screen, every=every, as_json=as_json, console=console)
    raise typer.Exit(code)
