"""Keeps broker, registry and writer of the demo running until Ctrl-C, for a person to try them."""

import json
import shlex
import shutil
import sys
from collections.abc import Iterator
from datetime import timedelta
from pathlib import Path

from rich.text import Text

from headrace.writer.demo import mixed_topic
from headrace.writer.demo.devstack.stack import Stack
from headrace.writer.demo.devstack.workspace import Interruption, Stopped, Workspace, Writer
from headrace.writer.demo.progress_monitor import ProgressMonitor
from headrace.writer.demo.terminal import Screen
from headrace.writer.demo.value_formats import ValueFormat
from headrace.writer.demo.workload import PIPELINE, TOPICS, page
from headrace.writer.storage.locations import delta_options

_FOREVER = timedelta(days=365)


def wait_for_signal(writer: Writer, monitor: ProgressMonitor, screen: Screen, interruption: Interruption) -> None:
    """Show the writer's status, whoever produces, until a signal comes. Raises ServerFailed."""

    def look() -> bool:
        interruption.check()
        monitor.update(None)
        return False

    monitor.title = "the writer runs until Ctrl-C"
    try:
        with screen.live():
            writer.wait_until(look, within=_FOREVER)
    except Stopped:
        interruption.accept()


def invitation(value_format: ValueFormat, stack: Stack, workspace: Workspace) -> Iterator[Text]:
    """Return commands for another terminal: look at it, send events, query with DuckDB."""
    bootstrap = stack.broker.bootstrap
    values = "JSON objects"
    servers = [f"bootstrap.servers={bootstrap}"]
    flags = ["--late", "100", "--broken", "10"]
    if value_format.has_registry:
        values = "Avro behind Confluent's header"
        servers.append(f"schema.registry.url={stack.registry.url}")
        flags = ["--registry", stack.registry.url, *flags]
    if workspace.lake.in_bucket:
        yield Text("What reads the lake finds its store and credentials in the environment, as this command did.\n")
    if (url := page(workspace)) is not None:
        yield Text.assemble(("open its page", "bold"), f"\n  {url}\n")
    yield Text.assemble(
        ("look at it", "bold"), *(f"\n  {shlex.join(arguments)}" for arguments in status_commands(workspace))
    )
    yield Text()
    command = [sys.executable, "-m", "headrace.writer.demo.produce", bootstrap, "clicks", "10000"]
    yield _command_text("send it events", [*command, "--format", value_format.name, *flags])
    yield Text.assemble(
        ("\nor your own", "bold"),
        f": {values}, with an event_time,\n  to {' or '.join(TOPICS)}",
        *(f"\n  {server}" for server in servers),
    )
    yield Text()
    yield query_command(workspace)


def status_commands(workspace: Workspace) -> list[list[str]]:
    """Verbs of headrace that show the writer at work, and what it works on."""
    config = str(workspace.config)
    # A virtual environment need not be on the PATH.
    installed = Path(sys.executable).with_name("headrace")
    command = ["headrace"] if shutil.which("headrace") or not installed.exists() else [str(installed)]
    commands = (
        ["status", config, "--watch"],
        ["preview", config, "--pipeline", PIPELINE, "--at", "assigned"],
        ["preview", config, "--pipeline", mixed_topic.PIPELINE],
        ["explain", config, "--pipeline", PIPELINE],
        ["audit", config, "--deep"],
    )
    return [[*command, *arguments] for arguments in commands]


def query_command(workspace: Workspace) -> Text:
    """Return a command that asks DuckDB."""
    query = "SELECT hour, _topic, count(*) AS rows FROM {} GROUP BY ALL ORDER BY ALL"
    if workspace.format == "iceberg":
        code = _scan_code(workspace)
    elif workspace.lake.in_bucket:
        code = _bucket_code(workspace)
    elif workspace.format == "parquet":
        quoted = workspace.table.replace("'", "''")
        files = f"read_parquet('{quoted}/*/*.parquet', union_by_name=true, hive_types_autocast=false)"
        query = query.format(files)
        code = ["import duckdb"]
    else:
        code = [
            "import duckdb, deltalake, urllib.parse",
            # Not as a dataset of Arrow: deltalake's hides rows from a WHERE on a column without bounds.
            f"files = map(urllib.parse.unquote, deltalake.DeltaTable({json.dumps(workspace.table)}).file_uris())",
            "events = duckdb.read_parquet([*files], hive_partitioning=True, union_by_name=True)",
        ]
    code = ["", *code, f"duckdb.sql({json.dumps(query.format('events'))}).show()"]
    return _command_text("ask DuckDB", [sys.executable, "-c", "\n".join(code)])


def removal_command(workspace: Workspace) -> Text:
    """Return a command that removes the tables from where a user put them."""
    command = [sys.executable, "-m", "headrace.writer.demo.remove_lake", workspace.lake.location]
    if workspace.stores_file is not None:
        command += ["--stores", str(workspace.stores_file.absolute())]
    return _command_text("remove the tables", command)


def _scan_code(workspace: Workspace) -> list[str]:
    """Return the lines of Python that scan the Iceberg table."""
    from headrace.writer.table.iceberg.catalog.catalog_client import file_settings

    settings = {**workspace.catalog, **file_settings(workspace.table, workspace.lake.stores)}
    table = workspace.table.rpartition("/")[2]
    return [
        "import duckdb; from pyiceberg.catalog import load_catalog",
        f'events = load_catalog("headrace", **{json.dumps(settings)}).load_table("headrace.{table}").scan().to_arrow()',
    ]


def _bucket_code(workspace: Workspace) -> list[str]:
    """Return the lines of Python that read the columns of the query from a bucket."""
    if workspace.format == "delta":
        options = delta_options(workspace.table, workspace.lake.stores)
        return [
            "import duckdb, deltalake",
            f"table = deltalake.DeltaTable({json.dumps(workspace.table)}, storage_options={json.dumps(options)})",
            'events = table.to_pyarrow_table(columns=["hour", "_topic"])',
        ]
    return [
        "import duckdb, pathlib, pyarrow.dataset",
        "from headrace.writer.config.loader import load; from headrace.writer.storage.locations import store_at",
        f"stores = load(pathlib.Path({json.dumps(str(workspace.config))})).stores",
        f"files, folder = store_at({json.dumps(workspace.table)}, stores).files()",
        'events = pyarrow.dataset.dataset(folder, filesystem=files, partitioning="hive").to_table(["hour", "_topic"])',
    ]


def _command_text(title: str, command: list[str]) -> Text:
    return Text.assemble((title, "bold"), "\n  ", shlex.join(command))
