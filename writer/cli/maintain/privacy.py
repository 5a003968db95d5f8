"""`headrace privacy`: lists the paths that a table's log has as protected, and releases one."""

from collections.abc import Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import Annotated, Any

import typer
from rich.console import Console

from headrace.writer.maintenance.path_release import PathRelease, ProtectedPath, ReleaseRequest, list_protected_paths
from headrace.writer.output.cli_options import By, default_author
from headrace.writer.output.command import command
from headrace.writer.output.command_inputs import Pipeline
from headrace.writer.output.report import SCREEN_ONLY, Report
from headrace.writer.output.tables import Column, TextTable, sentence
from headrace.writer.privacy.path_policies import COLUMNS_NAME, format_path, format_record
from headrace.writer.privacy.policy import Action
from headrace.writer.table.factory import existing_table


@dataclass(frozen=True)
class PathLine:
    """A path that a log has as protected, or as released."""

    # Its full name, or that of the columns.
    record: str
    # Dotted; empty for the record itself.
    path: str
    # As a configuration has it.
    policy: Any
    source: str
    protected: ProtectedPath = field(metadata=SCREEN_ONLY)
    action: Action = field(metadata=SCREEN_ONLY)

    @classmethod
    def of(cls, path: ProtectedPath, action: Action) -> "PathLine":
        """Return the line of a path. `action`: what becomes of its values."""
        record = path.record or COLUMNS_NAME
        return cls(record, ".".join(path.path), action.setting, path.policy.source, path, action)


@dataclass(frozen=True)
class PathReport(Report):
    """The paths that a table's log has."""

    pipeline: str
    paths: Sequence[PathLine]

    def render(self, out: Console) -> None:
        """Draw a line for each path."""
        if not self.paths:
            sentence(out, f"{self.pipeline}: the log has no protected path.")
            return
        table = TextTable(out, [Column("record"), Column("path"), Column("policy"), Column("by")])
        table.add(
            [[line.record, format_path(line.protected.path), str(line.action), line.source] for line in self.paths]
        )


@dataclass(frozen=True)
class ReleaseReport(Report):
    """The paths that are released, each with the policy that it had."""

    pipeline: str
    # Of the table's log, that has the release; None: it is only shown.
    version: int | None
    released: Sequence[PathLine]
    is_done: bool = field(metadata=SCREEN_ONLY)

    @property
    def has_changes(self) -> bool:
        """Whether there is a path to release."""
        return bool(self.released)

    def render(self, out: Console) -> None:
        """Say which values may be in the clear, and from when on."""
        verb = "is" if self.is_done else "is to be"
        for line in self.released:
            path = line.protected
            sentence(
                out,
                f"{self.pipeline}: {format_path(path.path)} of {format_record(path.record)} (policy {line.action}) "
                f"{verb} released. From the next start, replay, backfill or reprocess on its values are in the clear, "
                "unless a policy and a schema of today protect them.",
            )
        sentence(out, "Rows that are there stay as they are. A schema with its tag that is met again protects it.")


@command(exits={0: "shown", 1: "there is no table or the storage does not answer", 2: "configuration"})
def list_paths(pipeline: Pipeline) -> PathReport:
    """Show which paths of which records the table's log has as protected, how, and which words said so.

    A start that would put one of them in the clear is refused.
    """
    paths = list_protected_paths(existing_table(pipeline.name, pipeline.config).snapshot().protected_paths)
    return PathReport(pipeline.name, [PathLine.of(path, path.policy.action) for path in paths])


@command(
    exits={
        0: "shown or released",
        1: "a driver runs or the storage does not answer",
        2: "configuration: no such path",
    }
)
def release(
    pipeline: Pipeline,
    path: Annotated[list[str], typer.Option("--path", help="Path as `privacy list` shows it; * is all of the record.")],
    record: Annotated[
        str | None, typer.Option("--record", help="Full name of the record. Default: all that have the path.")
    ] = None,
    reason: Annotated[str, typer.Option("--reason", help="Why; it stands in the log.")] = "",
    by: By = None,
    *,
    write: bool,
) -> ReleaseReport:
    """Release a path: from the next start on it may be in the clear. Who did it, when and why, the log says.

    It changes no policy and no row. A path that the configuration or a known schema protects stays protected.
    """
    request = ReleaseRequest(record, path, by or default_author(), reason)
    path_release = PathRelease(pipeline.config, pipeline.name, request)
    version = None
    if write:
        version = path_release.carry_out(datetime.now(UTC))
    released = [PathLine.of(path, action) for path, action in path_release.paths.items()]
    return ReleaseReport(pipeline.name, version, released, is_done=write)
