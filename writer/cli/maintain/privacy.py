"""`headrace privacy`: lists the paths that a table's log has as protected, and releases one."""

from collections.abc import Mapping
from datetime import UTC, datetime
from functools import partial
from typing import Annotated

import typer
from rich.console import Console

from writer.cli.config_command import ConfigCommand
from writer.config.pipelines import Config
from writer.maintenance.path_release import PathRelease, ProtectedPath, ReleaseRequest, list_protected_paths
from writer.output.cli_options import AsJson, By, ConfigFile, OnePipeline, default_author, load_pipeline
from writer.output.confirmation import DryRun, Yes, confirm
from writer.output.tables import Column, TextTable, console, emit_whole, sentence
from writer.privacy.path_policies import COLUMNS_NAME, format_path, format_record
from writer.privacy.policy import Action
from writer.table.factory import existing_table

privacy = typer.Typer(no_args_is_help=True, help="Show what the table's log has as protected, and release paths.")


def run_list(config: Config, name: str, *, as_json: bool, out: Console) -> None:
    """Show what the log has. Raises CommitFailed, HeadraceError where there is no table."""
    paths = list_protected_paths(existing_table(name, config).snapshot().protected_paths)
    if as_json:
        emit_whole([path.to_json() for path in paths])
    elif paths:
        TextTable(out, [Column("record"), Column("path"), Column("policy"), Column("by")]).add(
            [
                [path.record or COLUMNS_NAME, format_path(path.path), str(path.policy.action), path.policy.source]
                for path in paths
            ]
        )
    else:
        sentence(out, f"{name}: the log has no protected path.")


def run_release(
    config: Config, name: str, request: ReleaseRequest, *, write: bool, as_json: bool, out: Console
) -> bool:
    """Show which values may be in the clear from then on, and enter it in the log if asked.

    Returns whether there is anything to release. Raises ConfigError, CommitFailed, DriverAlive.
    """
    path_release = PathRelease(config, name, request)
    version = path_release.carry_out(datetime.now(UTC)) if write else None
    if as_json:
        paths = [{**path.to_json(), "policy": action.setting} for path, action in path_release.paths.items()]
        emit_whole({"pipeline": name, "version": version, "released": paths})
    else:
        _show_release(out, name, path_release.paths, done=write)
    return bool(path_release.paths)


def _show_release(out: Console, name: str, paths: Mapping[ProtectedPath, Action], *, done: bool) -> None:
    verb = "is" if done else "is to be"
    for path, action in paths.items():
        sentence(
            out,
            f"{name}: {format_path(path.path)} of {format_record(path.record)} (policy {action}) {verb} released. From "
            "the next start, replay, backfill or reprocess on its values are in the clear, unless a policy and a "
            "schema of today protect them.",
        )
    sentence(out, "Rows that are there stay as they are. A schema with its tag that is met again protects it.")


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
    request = ReleaseRequest(record, path, by or default_author(), reason)
    work = partial(run_release, settings, name, request, as_json=as_json, out=console())
    confirm(work, yes=yes, dry_run=dry_run, as_json=as_json)
