"""`headrace privacy`: lists the paths that a table's log has as protected, and releases one."""

import getpass
import socket
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from functools import partial
from typing import Annotated, Any

import typer
from rich.console import Console

from writer.cli.config_command import ConfigCommand
from writer.clients.driver_endpoint import check_no_driver
from writer.config.base import did_you_mean
from writer.config.pipelines import Config
from writer.core.errors import ConfigError
from writer.output import tables
from writer.output.cli_options import AsJson, By, ConfigFile, OnePipeline, load_pipeline
from writer.output.confirmation import DryRun, Yes, confirm
from writer.output.tables import Column, TextTable, console
from writer.privacy.path_policies import (
    COLUMNS,
    COLUMNS_NAME,
    RELEASED,
    Path,
    PathPolicies,
    PathPolicy,
    RecordPolicies,
    effective,
    shown_path,
    shown_record,
)
from writer.privacy.policy import CLEAR, Action
from writer.table.factory import existing_table

privacy = typer.Typer(no_args_is_help=True, help="Show what the table's log has as protected, and release paths.")
ALL = "*"


@dataclass(frozen=True)
class ListedPath:
    """One path that the log has."""

    record: str
    path: Path
    policy: PathPolicy

    def to_json(self) -> dict[str, Any]:
        """Write it as `--json` does."""
        return {
            "record": self.record or COLUMNS_NAME, "path": ".".join(self.path), "policy": self.policy.action.setting,
            "source": self.policy.source,
        }  # fmt: skip


@dataclass(frozen=True)
class Release:
    """Which paths are released, by whom and why."""

    record: str | None  # None: of every record that has the path
    paths: list[str]
    by: str
    reason: str


def listed_paths(paths: RecordPolicies) -> list[ListedPath]:
    """Return all paths of a log, in the order of their records."""
    return [
        ListedPath(record, path, policy)
        for record, of_record in sorted(paths.items())
        for path, policy in sorted(of_record.items())
    ]


def planned_release(wanted: Release, protected: RecordPolicies) -> dict[str, PathPolicies]:
    """Return what the log is to have of the paths that are released. Raises ConfigError for one that is not protected.

    A path below one that is protected may be released alone.
    """
    record = COLUMNS if wanted.record == COLUMNS_NAME else wanted.record
    if record is not None and record not in protected:
        known = [name or COLUMNS_NAME for name in protected]
        raise ConfigError(f"the log has no protected path of a record {record!r}{did_you_mean(record, known)}")
    records = protected if record is None else {record: protected[record]}
    released: dict[str, PathPolicies] = {}
    for text in wanted.paths:
        matches = {name: dict(_matches(text, paths)) for name, paths in records.items()}
        if not any(matches.values()):
            known = [
                shown_path(path) for paths in records.values() for path in paths if effective(paths, path) != CLEAR
            ]
            raise ConfigError(
                f"the log has no protected path {text!r}{did_you_mean(text, known)}; `headrace privacy list` has all"
            )
        for name, paths in matches.items():
            released |= {name: {**released.get(name, {}), **paths}} if paths else {}
    return released


def _matches(text: str, paths: PathPolicies) -> Iterator[tuple[Path, PathPolicy]]:
    """Yield the protected paths that a person means."""
    names = {shown_path(path): path for path in paths}
    candidates = list(paths) if text == ALL else [names.get(text, tuple(text.split(".")))]
    for path in candidates:
        if effective(paths, path) != CLEAR:
            yield path, PathPolicy(CLEAR, RELEASED)


def run_list(config: Config, name: str, *, as_json: bool, out: Console) -> None:
    """Show what the log has. Raises CommitFailed, HeadraceError where there is no table."""
    paths = listed_paths(existing_table(name, config).snapshot().protected_paths)
    if as_json:
        tables.emit_whole([one.to_json() for one in paths])
        return
    if not paths:
        tables.sentence(out, f"{name}: the log has no protected path.")
        return
    sheet = TextTable(out, [Column("record"), Column("path"), Column("policy"), Column("by")])
    sheet.add([
        [one.record or COLUMNS_NAME, shown_path(one.path), str(one.policy.action), one.policy.source] for one in paths
    ])  # fmt: skip


def run_release(config: Config, name: str, wanted: Release, *, write: bool, as_json: bool, out: Console) -> bool:
    """Show which values may be in the clear from then on, and enter it in the log if asked.

    Returns whether there is anything to release. Raises ConfigError, CommitFailed, DriverAlive.
    """
    check_no_driver(config, name, "Stop it: it protects what it knows until it ends.")
    table = existing_table(name, config)
    protected = table.snapshot().protected_paths
    released = planned_release(wanted, protected)
    facts = {"by": wanted.by, "reason": wanted.reason, "at": datetime.now(UTC).isoformat()}
    version = table.release_paths(released, facts) if write else None
    before = {
        one: effective(protected[one.record], one.path) for one in listed_paths(released)
    }  # fmt: skip
    if as_json:
        tables.emit_whole(
            {"pipeline": name, "version": version, "released": [_document(one, was) for one, was in before.items()]}
        )
    else:
        _show_release(out, name, before, done=write)
    return bool(released)


def _document(one: ListedPath, before: Action) -> dict[str, Any]:
    return {**one.to_json(), "policy": before.setting}


def _show_release(out: Console, name: str, before: Mapping[ListedPath, Action], *, done: bool) -> None:
    verb = "is" if done else "is to be"
    for one, action in before.items():
        where = f"{shown_path(one.path)} of {shown_record(one.record)}"
        tables.sentence(
            out,
            f"{name}: {where} (policy {action}) {verb} released. From the next start, replay, backfill or reprocess on "
            "its values are in the clear, unless a policy and a schema of today protect them.",
        )
    tables.sentence(out, "Rows that are there stay as they are. A schema with its tag that is met again protects it.")


@privacy.command("list", cls=ConfigCommand)
def list_paths(config: ConfigFile, pipeline: OnePipeline = None, as_json: AsJson = False) -> None:
    """Show which paths of which records the table's log has as protected, how, and which words said so.

    A start that would put one of them in the clear is refused.

    Exit codes: 0 shown, 1 there is no table or the storage does not answer, 2 configuration.
    """
    settings, name = load_pipeline(config, pipeline)
    run_list(settings, name, as_json=as_json, out=console())


@privacy.command("release", cls=ConfigCommand)
def release(
    config: ConfigFile,
    path: Annotated[list[str], typer.Option("--path", help="Path as `privacy list` shows it; * is all of the record.")],
    pipeline: OnePipeline = None,
    record: Annotated[
        str | None, typer.Option("--record", help="Full name of the record. Default: all that have the path.")
    ] = None,
    reason: Annotated[str, typer.Option("--reason", help="Why; it stands in the log.")] = "",
    by: By = None,
    yes: Yes = False,
    dry_run: DryRun = False,
    as_json: AsJson = False,
) -> None:
    """Release a path: from the next start on it may be in the clear. Who did it, when and why, the log says.

    It changes no policy and no row. A path that the configuration or a known schema protects stays protected.

    Exit codes: 0 shown or released, 1 a driver runs or the storage does not answer, 2 configuration: no such path.
    """
    settings, name = load_pipeline(config, pipeline)
    author = by or f"{getpass.getuser()}@{socket.gethostname()}"
    wanted = Release(record, path, author, reason)
    work = partial(run_release, settings, name, wanted, as_json=as_json, out=console())
    confirm(work, yes=yes, dry_run=dry_run, as_json=as_json)
