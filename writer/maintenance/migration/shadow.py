"""Shadow: a second table that is written from a table's offsets on, by another file or from another image."""

from collections.abc import Mapping

from headrace.writer.audit.audit import audit
from headrace.writer.config.pipelines import Config
from headrace.writer.core import logging
from headrace.writer.core.errors import ConfigError
from headrace.writer.core.offsets import TopicPartition
from headrace.writer.table.factory import existing_table, main_table
from headrace.writer.table.locations import shadow_config

# By topic and partition.
StartOffsets = Mapping[str, Mapping[int, int]]


def shadow_start_offsets(config: Config, name: str, begin: str) -> dict[str, dict[int, int]]:
    """Return where a shadow begins, by topic and partition: what the first table had at a version, now or first.

    `begin`: start, now or a version. Raises ConfigError, CommitFailed where the log does not reach back to the version.
    """
    table = existing_table(name, config)
    snapshot = table.snapshot()
    offsets: Mapping[TopicPartition, int]
    match begin:
        case "start":
            lines = audit(config, name, since=None, deep=False).reconciliation.lines
            offsets = {line.part: line.range.start for line in lines}
        case "now":
            offsets = snapshot.parts()
        case _ if begin.isdecimal():
            offsets = table.snapshot_at(int(begin)).parts()
        case _:
            raise ConfigError(f"--from {begin!r} is neither start, now nor a version of the table; write --from 120")
    newest = {topic: len(ids) for topic, ids in snapshot.incarnations().items()}
    offsets_by_topic: dict[str, dict[int, int]] = {}
    for part, offset in offsets.items():
        if part.incarnation == newest[part.topic]:
            offsets_by_topic.setdefault(part.topic, {})[part.partition] = offset
    return offsets_by_topic


def shadow_writer_config(first: Config, other: Config, name: str, location: str, offsets: StartOffsets) -> Config:
    """Return the configuration by which a shadow is written from offsets on.

    What the first table's log has as protected, it protects from its first record on. Raises ConfigError, CommitFailed.
    """
    shadow = shadow_config(first, other, name, location).beginning(name, offsets)
    return shadow.after_protecting(name, existing_table(name, first).snapshot().protected_paths)


def revive_shadow(first: Config, shadow: Config, name: str) -> None:
    """Let a table go on that the first one superseded: it becomes a shadow again. Raises CommitFailed."""
    table = main_table(name, shadow)
    if table.exists() and table.snapshot().superseded_by == first.pipelines[name].table.location:
        table.revive({})
        logging.event("shadow_revived", pipeline=name, location=table.location)
