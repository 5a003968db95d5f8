"""`headrace shadow`: writes the offsets of a table to a second one, by another file or from another image."""

import shlex
import threading
from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.console import Console

from writer.audit.audit import audit
from writer.audit.coverage import Coverage, coverage
from writer.cli.write.run import run_writer
from writer.config.loader import ReloadableConfig, load
from writer.config.pipelines import Config
from writer.core import logging
from writer.core.errors import ConfigError
from writer.core.offsets import TopicPartition
from writer.core.signals import on_hangup
from writer.core.text import plural
from writer.output.cli_options import AsJson, ConfigFile, OnePipeline, load_pipeline
from writer.output.tables import Column, TextTable, console, emit_whole, numbers, sentence
from writer.table.factory import existing_table, main_table
from writer.table.locations import shadow_config

StartOffsets = Mapping[str, Mapping[int, int]]  # by topic and partition
OtherFile = Annotated[
    Path | None,
    typer.Option("--with", help="Configuration of the shadow. Default: the same file, where the image is another."),
]


def offsets_of(config: Config, name: str, begin: str) -> dict[str, dict[int, int]]:
    """Return where a shadow begins, by topic and partition: what the first table had at a version, now or first.

    Raises ConfigError, CommitFailed where its log does not reach back to the version.
    """
    table = existing_table(name, config)
    snapshot = table.snapshot()
    parts: Mapping[TopicPartition, int]
    match begin:
        case "start":
            lines = audit(config, name, since=None, deep=False).reconciliation.lines
            parts = {line.part: line.start for line in lines}
        case "now":
            parts = snapshot.parts()
        case _ if begin.isdigit():
            parts = table.snapshot_at(int(begin)).parts()
        case _:
            raise ConfigError(f"--from {begin!r} is neither start, now nor a version of the table; write --from 120")
    found: dict[str, dict[int, int]] = {}
    newest = {topic: len(ids) for topic, ids in snapshot.incarnations().items()}
    for part, offset in parts.items():
        if part.incarnation == newest[part.topic]:
            found.setdefault(part.topic, {})[part.partition] = offset
    return found


def shadow_writer(first: Config, other: Config, name: str, location: str, offsets: StartOffsets) -> Config:
    """Return the configuration by which a shadow is written from offsets on.

    What the first table's log has as protected, it protects from its first record on. Raises ConfigError, CommitFailed.
    """
    made = shadow_config(first, other, name, location).beginning(name, offsets)
    return made.after_protecting(name, existing_table(name, first).snapshot().protected_paths)


def _revive(first: Config, made: Config, name: str) -> None:
    """Let a table go on that the first one superseded: it becomes a shadow again."""
    table = main_table(name, made)
    if table.exists() and table.snapshot().superseded_by == first.pipelines[name].table.location:
        table.revive({})
        logging.event("shadow_revived", pipeline=name, location=table.location)


def _partitions(first: Coverage, second: Coverage) -> list[dict[str, Any]]:
    found = []
    for key, line in sorted(second.lines.items(), key=lambda item: item[1].part):
        other = first.lines.get(key)
        found.append({
            "topic": line.part.topic, "partition": line.part.partition, "start": line.start, "end": line.end,
            "first_end": other and other.end, "gap": line.gap,
        })  # fmt: skip
    return found


def _show(out: Console, found: Mapping[str, Any]) -> None:
    sentence(
        out,
        f"{found['pipeline']}: the shadow at {found['location']} has {plural(found['rows'], 'row')}, and "
        f"{plural(found['dead_letters'], 'dead letter')}.",
    )
    sheet = TextTable(out, [Column("partition"), *numbers("from", "to", "the first to", "in gaps")])
    sheet.add([
        [f"{one['topic']}/{one['partition']}", f"{one['start']:,}", f"{one['end']:,}",
         "none" if one["first_end"] is None else f"{one['first_end']:,}", f"{one['gap']:,}"]
        for one in found["partitions"]
    ])  # fmt: skip
    sentence(out, f"Compare: {found['diff']}")


def shadow(
    config: ConfigFile,
    location: Annotated[str, typer.Option("--location", help="Where the second table lies; what is beside it, too.")],
    pipeline: OnePipeline = None,
    other: OtherFile = None,
    begin: Annotated[
        str,
        typer.Option("--from", help="Where a new shadow begins: start (as the first table), now, or a version of it."),
    ] = "start",
    follow: Annotated[
        bool, typer.Option("--follow", help="Read on beside the first until it is stopped. Default: what is there now.")
    ] = False,
    as_json: AsJson = False,
) -> None:
    """Write the offsets of a pipeline's table to a second one, without touching the first.

    The writer runs as `headrace run` does, with --with FILE for other rules, or from another image; its table, what is
    beside that and its checkpoints have places of their own, and no hook, receiver or consumer group hears of it. If it
    ends, run it again: it goes on where its table ends. Compare the two with `headrace diff`, switch with `headrace
    promote`.

    Exit codes: 0 done, 1 crash, 2 configuration, 4 fenced by another run, 5 stopped by a limit.
    """
    first, name = load_pipeline(config, pipeline)
    offsets, path = offsets_of(first, name, begin), other or config
    reload = threading.Event()

    def read(file: Path) -> Config:
        return shadow_writer(first, load(file), name, location, offsets)

    file = ReloadableConfig(path, [name], reload, read=read)
    logging.set_up()
    on_hangup(reload)
    _revive(first, file.config, name)
    if code := run_writer(file, once=not follow):
        raise typer.Exit(code)
    one, two = coverage(first, name), coverage(file.config, name)
    total = two.audit.reconciliation.total
    options = f" --with {shlex.quote(str(other))}" if other else ""
    found = {
        "pipeline": name, "location": two.location, "rows": total("rows"),
        "dead_letters": total("dead_letters") + total("quarantined"), "partitions": _partitions(one, two),
        "diff": f"headrace diff {shlex.quote(str(config))} --pipeline {name}{options} --shadow {two.location}",
    }  # fmt: skip
    if as_json:
        emit_whole(found)
    else:
        _show(console(), found)
