"""`headrace keys`: checks the keyring of pipelines with privacy, and makes new keys in it."""

from functools import partial
from typing import Annotated

import typer
from rich.console import Console

from writer.cli.config_command import ConfigCommand
from writer.config.loader import load
from writer.config.pipelines import Config
from writer.core.errors import ConfigError
from writer.core.text import join_first
from writer.maintenance.key_rotation import KeyRotation, ListedKey, check_keys
from writer.output.cli_options import AsJson, ConfigFile
from writer.output.confirmation import DryRun, Yes, confirm
from writer.output.tables import console, emit_whole, sentence

_PIPELINES_NAMED = 3

keys = typer.Typer(no_args_is_help=True, help="Check and rotate the keys of privacy.")


def run_check(config: Config, *, as_json: bool, out: Console) -> None:
    """Show the keys, and say whether the logs agree. Raises ConfigError where one does not."""
    key_check = check_keys(config)
    if as_json:
        listed_keys = [key.to_json() for key in key_check.keys]
        emit_whole({"keyring": key_check.keyring, "keys": listed_keys, "missing": key_check.missing})
    else:
        for key in key_check.keys:
            sentence(out, _describe_key(key))
    if key_check.missing:
        pipelines = join_first(key_check.missing, _PIPELINES_NAMED)
        raise ConfigError(f"{key_check.keyring} lacks the key that the log names of {pipelines}")
    if key_check.outdated_hash_key is not None:
        raise ConfigError(
            f"hash key {key_check.outdated_hash_key} is in use and not primary: the next start is refused, for joins "
            "would break. Set hash.primary to it, or `headrace keys rotate --break-joins`."
        )


def _describe_key(key: ListedKey) -> str:
    primary = " (primary)" if key.is_primary else ""
    pipelines = join_first(key.pipelines, _PIPELINES_NAMED) or "no pipeline"
    return f"{key.purpose} key {key.id}{primary}, fingerprint {key.fingerprint}: {pipelines}"


@keys.command("check", cls=ConfigCommand)
def check(config: ConfigFile, as_json: AsJson = False) -> None:
    """Open all keys, try them, and show which tables' logs name them. Shows ids and fingerprints, never a key.

    Exit codes: 0 all are fine, 1 the storage does not answer, 2 configuration: a key is missing, or is another one.
    """
    run_check(load(config), as_json=as_json, out=console())


def run_rotate(config: Config, *, break_joins: bool, write: bool, as_json: bool, out: Console) -> bool:
    """Show what becomes of the keyring, and change it if asked. Returns whether there is anything to do."""
    rotation = KeyRotation(config, break_joins=break_joins)
    if write:
        rotation.carry_out()
    if as_json:
        emit_whole({"keyring": rotation.keyring_name, "new": rotation.new_keys, "joins_break": rotation.pipelines})
    else:
        _show_rotation(out, rotation, done=write)
    return rotation.is_due


def _show_rotation(out: Console, rotation: KeyRotation, *, done: bool) -> None:
    verb = "was made" if done else "is made"
    for key in rotation.new_keys:
        sentence(out, f"{key} {verb} in {rotation.keyring_name}, for new values; former keys stay, for reading.")
    for name in rotation.pipelines:
        sentence(out, f"pipeline {name}: hashes of rows from the next start on equal none of the rows before.")
    if done and rotation.new_keys and not rotation.pipelines:
        sentence(out, "Give executors the same keyring, then restart the writer.")


@keys.command("rotate", cls=ConfigCommand)
def rotate(
    config: ConfigFile,
    break_joins: Annotated[
        bool,
        typer.Option("--break-joins", help="A new hash key: new hashes do not equal those of rows that are there."),
    ] = False,
    yes: Yes = False,
    dry_run: DryRun = False,
    as_json: AsJson = False,
) -> None:
    """Make a new encryption key, which new values get; or, where there is no keyring, make one.

    Values that are there stay readable by the former keys, which stay in the keyring. A hash key changes only with
    --break-joins, which is an entry of each table's log.

    Exit codes: 0 done or shown, 1 a driver runs or the storage does not answer, 2 configuration.
    """
    work = partial(run_rotate, load(config), break_joins=break_joins, as_json=as_json, out=console())
    confirm(work, yes=yes, dry_run=dry_run, as_json=as_json)
