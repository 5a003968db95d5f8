"""`headrace keys`: checks the keyring of pipelines with privacy, and makes new keys in it."""

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Annotated

import typer
from rich.console import Console

from headrace.writer.core.errors import ConfigError, HeadraceError
from headrace.writer.core.text import join_first
from headrace.writer.maintenance.key_rotation import KeyCheck, KeyRotation, ListedKey, check_keys
from headrace.writer.output.command import command
from headrace.writer.output.command_inputs import Settings
from headrace.writer.output.report import SCREEN_ONLY, Report
from headrace.writer.output.tables import sentence

_PIPELINES_NAMED = 3


@dataclass(frozen=True)
class KeyReport(Report):
    """The keys of a keyring, as `KeyCheck` has them."""

    keyring: str
    keys: Sequence[ListedKey]
    missing: Sequence[str]
    # Where the keys do not fit the logs.
    failure: HeadraceError | None = field(metadata=SCREEN_ONLY)

    def render(self, out: Console) -> None:
        """Draw a line for each key."""
        for key in self.keys:
            primary = " (primary)" if key.primary else ""
            pipelines = join_first(key.pipelines, _PIPELINES_NAMED) or "no pipeline"
            sentence(out, f"{key.purpose} key {key.id}{primary}, fingerprint {key.fingerprint}: {pipelines}")


@dataclass(frozen=True)
class RotationReport(Report):
    """The keys that are made, and the pipelines whose rows get other hashes, or can be read by nobody."""

    keyring: str
    new: Sequence[str]
    joins_break: Sequence[str]
    unreadable: Sequence[str]
    is_done: bool = field(metadata=SCREEN_ONLY)

    @property
    def has_changes(self) -> bool:
        """Whether a key is made, or a log gets another one."""
        return bool(self.new or self.joins_break or self.unreadable)

    def render(self, out: Console) -> None:
        """Say what becomes of the keyring, and what is to follow."""
        verb = "was made" if self.is_done else "is made"
        for key in self.new:
            sentence(out, f"{key} {verb} in {self.keyring}, for new values; former keys stay, for reading.")
        for name in self.joins_break:
            sentence(out, f"pipeline {name}: hashes of rows from the next start on equal none of the rows before.")
        for name in self.unreadable:
            sentence(
                out, f"pipeline {name}: nobody can read the values that its rows have encrypted; they are given up."
            )
        if self.is_done and self.new and not self.joins_break:
            sentence(out, "Give executors the same keyring, then restart the writer.")


@command(
    exits={
        0: "all are fine",
        1: "the storage does not answer",
        2: "configuration: a key is missing, or is another one",
    }
)
def check(config: Settings) -> KeyReport:
    """Open all keys, try them, and show which tables' logs name them. Shows ids and fingerprints, never a key."""
    key_check = check_keys(config)
    return KeyReport(key_check.keyring, key_check.keys, key_check.missing, _find_failure(key_check))


@command(exits={0: "done or shown", 1: "a driver runs or the storage does not answer", 2: "configuration"})
def rotate(
    config: Settings,
    break_joins: Annotated[
        bool,
        typer.Option("--break-joins", help="A new hash key: new hashes do not equal those of rows that are there."),
    ] = False,
    accept_loss: Annotated[
        bool,
        typer.Option("--accept-loss", help="Give values up whose keys are lost: the logs get the keys of today."),
    ] = False,
    *,
    write: bool,
) -> RotationReport:
    """Make a new encryption key, which new values get; or, where there is no keyring, make one.

    Values that are there stay readable by the former keys, which stay in the keyring. A hash key changes only with
    --break-joins, which is an entry of each table's log. Where the keyring is missing, and logs know its keys, none is
    made: put it back. --accept-loss makes one, if it is lost for good.
    """
    rotation = KeyRotation(config, break_joins=break_joins, accept_loss=accept_loss)
    if write:
        rotation.carry_out()
    return RotationReport(
        rotation.keyring_name, rotation.new_keys, rotation.pipelines, rotation.unreadable, is_done=write
    )


def _find_failure(key_check: KeyCheck) -> ConfigError | None:
    """Return why the next start would fail; None: the keys fit the logs."""
    if key_check.missing:
        pipelines = join_first(key_check.missing, _PIPELINES_NAMED)
        return ConfigError(f"{key_check.keyring} lacks the key that the log names of {pipelines}")
    if key_check.outdated_hash_key is not None:
        return ConfigError(
            f"hash key {key_check.outdated_hash_key} is in use and not primary: the next start is refused, for joins "
            "would break. Set hash.primary to it, or `headrace keys rotate --break-joins`."
        )
    return None
