"""`headrace status`: a pipeline's status from its driver, or from the table and Kafka without one."""

import time
from collections.abc import Iterator, Mapping
from contextlib import suppress
from dataclasses import asdict
from datetime import UTC, datetime, timedelta
from typing import Annotated, Any

import typer
from rich.console import Console, Group
from rich.live import Live
from rich.text import Text

from writer.clients.driver_endpoint import announced, ask_driver
from writer.clients.kafka import BrokerUnreachable, Cluster, answering
from writer.config.loader import load
from writer.config.pipelines import Config
from writer.core.units import show_duration
from writer.output.cli_options import ConfigFile, Pipelines, duration_of, json_option
from writer.output.status_screen import line, screen
from writer.output.tables import emit, emit_whole, show
from writer.status import from_table
from writer.status.document import document

_KAFKA_WITHIN = timedelta(seconds=5)  # a person waits for the answer


def run_status(config: Config, names: list[str], *, every: timedelta | None, as_json: bool, console: Console) -> int:
    """Show the pipelines: once, or again and again until Ctrl-C. Returns 1 when one failed or cannot be read."""
    code = 0
    looks = _looks(config, names, every)
    with suppress(KeyboardInterrupt):
        if every is not None and console.is_terminal and not as_json:
            with Live(console=console, auto_refresh=False) as live:
                for shown in looks:
                    foot = Text(f"\nevery {show_duration(every)}, Ctrl-C ends", style="dim")
                    live.update(Group(screen(shown), foot), refresh=True)
                    code = exit_code(shown)
        else:
            for shown in looks:
                _write(shown, console, as_json=as_json, lines=every is not None)
                code = exit_code(shown)
    return code


def collect(config: Config, names: list[str], cluster: Cluster, now: datetime) -> dict[str, Any]:
    """Describe the pipelines as they are now, each by its driver, or else by its table and Kafka.

    Pipelines without a driver share one wait for a broker that does not answer.
    """
    shown = document((), now)
    asked: Cluster | BrokerUnreachable | None = None
    for name in names:
        driver = announced(config.checkpoints, name, config.s3.settings)
        found = ask_driver(driver, name) if driver is not None else None
        if found is None:
            asked = asked or answering(cluster)
            view = from_table.view(name, config, asked, now)
            found = document([view], now, source="lake")["pipelines"][name]
        answers = found["source"] == "driver"
        shown["pipelines"][name] = {
            **found,
            "executors": found.get("executors"),
            "driver": None if driver is None else {**asdict(driver), "answers": answers},
        }
    return shown


def exit_code(shown: Mapping[str, Any]) -> int:
    """Return 1 when a pipeline has failed, or its table cannot be read."""
    return int(any(pipeline["state"] in ("failed", "unreadable") for pipeline in shown["pipelines"].values()))


def _looks(config: Config, names: list[str], every: timedelta | None) -> Iterator[dict[str, Any]]:
    cluster = Cluster(config.kafka.address, min(config.kafka.request_timeout, _KAFKA_WITHIN))
    yield collect(config, names, cluster, datetime.now(UTC))
    while every is not None:
        time.sleep(every.total_seconds())
        yield collect(config, names, cluster, datetime.now(UTC))


def _write(shown: Mapping[str, Any], console: Console, *, as_json: bool, lines: bool) -> None:
    if as_json:
        (emit if lines else emit_whole)(shown)
    elif lines:
        for name, pipeline in shown["pipelines"].items():
            print(line(name, pipeline, shown["at"]), flush=True)  # noqa: T201 - one line each time, for a pipe
    else:
        show(screen(shown), console)


def status(
    config: ConfigFile,
    pipeline: Pipelines = None,
    watch: Annotated[bool, typer.Option("--watch", help="Show it again and again, until Ctrl-C.")] = False,
    interval: Annotated[str, typer.Option("--interval", help="Time between two looks with --watch.")] = "2 s",
    as_json: Annotated[bool, json_option("one document; with --watch, a line for each look")] = False,
) -> None:
    """Show how the pipelines are: lag, last commit, rates, dead letters, retention. Asks the driver, else the lake.

    A driver's executors too: how many are recommended, requested and registered, and the autoscaler's last decision.

    Exit codes: 0 shown, 1 a pipeline has failed or its table cannot be read, 2 configuration.
    """
    settings = load(config)
    every = duration_of("--interval", interval) if watch else None
    console = Console(highlight=False)
    raise typer.Exit(run_status(settings, settings.chosen(pipeline), every=every, as_json=as_json, console=console))
