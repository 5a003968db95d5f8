"""`headrace keys`: checks the keyring of pipelines with privacy, and makes new keys in it."""

from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Annotated, Any

import pyarrow as pa
import typer
from rich.console import Console

from writer.cli.config_command import ConfigCommand
from writer.clients.driver_endpoint import check_no_driver
from writer.commit.privacy import RecordedPrivacy, primary_keys
from writer.config.loader import load
from writer.config.pipelines import Config
from writer.core.errors import ConfigError
from writer.core.text import listed
from writer.output import tables
from writer.output.cli_options import AsJson, ConfigFile
from writer.output.confirmation import DryRun, Yes, confirm
from writer.output.tables import console
from writer.privacy.encryption import decrypted, encrypted
from writer.privacy.hashing import hashed
from writer.privacy.keyring import (
    PURPOSES,
    KeyId,
    Keyring,
    KeySource,
    Purpose,
    fingerprint,
    read_keyring,
    write_keyring,
)
from writer.table.factory import main_table

keys = typer.Typer(no_args_is_help=True, help="Check and rotate the keys of privacy.")
# RFC 4231, test case 2.
_VECTOR = (b"Jefe", b"what do ya want for nothing?",
           "5bdcc146bf60754e6a042426089575c75a003f089d2739839dec58b964ec3843")  # fmt: skip
_SHOWN = 3


@dataclass(frozen=True)
class Key:
    """One key of the keyring, without its bytes."""

    purpose: Purpose
    id: str
    fingerprint: str
    is_primary: bool
    pipelines: list[str]  # whose log says that new values get it

    def to_json(self) -> dict[str, Any]:
        """Write it as `--json` does."""
        return {"purpose": self.purpose, "id": self.id, "fingerprint": self.fingerprint, "primary": self.is_primary,
                "pipelines": self.pipelines}  # fmt: skip


def recorded(config: Config) -> dict[str, RecordedPrivacy]:
    """Return what the logs of pipelines have of privacy, where they have some."""
    found = {}
    for name in config.pipelines:
        table = main_table(name, config)
        if table.exists() and (snapshot := table.snapshot()).privacy:
            found[name] = RecordedPrivacy.of(snapshot)
    return found


def keys_of(ring: Keyring, logs: dict[str, RecordedPrivacy]) -> Iterator[Key]:
    """Yield the keys of a ring, with the pipelines whose logs name them."""
    for purpose in PURPOSES:
        for key_id, key in ring.of(purpose).items():
            mine = KeyId(key_id, fingerprint(key))
            users = [name for name, one in logs.items() if one.keys[purpose] == mine.number]
            yield Key(purpose, key_id, mine.fingerprint, ring.primary[purpose] == key_id, users)


def check_ring(ring: Keyring) -> None:
    """Hash and encrypt with each key, and read back. Raises ConfigError."""
    key, value, expected = _VECTOR
    if hashed(pa.array([value]), key)[0].as_py() != expected:
        raise ConfigError("HMAC-SHA-256 does not give the digest of RFC 4231 on this machine; install headrace anew")
    for key_id, secret in ring.encryption_keys.items():
        text = encrypted(pa.array([value]), key_id, secret)[0].as_py()
        if decrypted(text, secret) != value:
            raise ConfigError(f"what encryption key {key_id} encrypts is not read back; install headrace anew")


def run_check(config: Config, *, as_json: bool, out: Console) -> None:
    """Show the keys, and say whether the logs agree. Raises ConfigError where one does not."""
    source = _source(config)
    ring = read_keyring(source)
    check_ring(ring)
    logs = recorded(config)
    found = list(keys_of(ring, logs))
    unknown = [
        f"{name} ({what})" for name, one in logs.items() for what in PURPOSES
        if one.keys[what] and not any(key.purpose == what and name in key.pipelines for key in found)
    ]  # fmt: skip
    changed = [key.id for key in found if key.purpose == "hash" and not key.is_primary and key.pipelines]
    if as_json:
        tables.emit_whole({"keyring": str(source.place), "keys": [key.to_json() for key in found], "missing": unknown})
    else:
        for key in found:
            primary, users = " (primary)" if key.is_primary else "", listed(key.pipelines, _SHOWN) or "no pipeline"
            tables.sentence(out, f"{key.purpose} key {key.id}{primary}, fingerprint {key.fingerprint}: {users}")
    if unknown:
        raise ConfigError(f"{source.place} lacks the key that the log names of {listed(unknown, _SHOWN)}")
    if changed:
        raise ConfigError(
            f"hash key {changed[0]} is in use and not primary: the next start is refused, for joins would break. Set "
            "hash.primary to it, or `headrace keys rotate --break-joins`."
        )


@keys.command("check", cls=ConfigCommand)
def check(config: ConfigFile, as_json: AsJson = False) -> None:
    """Open all keys, try them, and show which tables' logs name them. Shows ids and fingerprints, never a key.

    Exit codes: 0 all are fine, 1 the storage does not answer, 2 configuration: a key is missing, or is another one.
    """
    run_check(load(config), as_json=as_json, out=console())


@dataclass(frozen=True)
class Rotation:
    """What a rotation changes."""

    source: KeySource
    ring: Keyring | None  # to be written; None: the file stays
    new: list[str]  # keys that are made
    logs: list[str]  # pipelines whose log gets another hash key


def planned(config: Config, *, break_joins: bool) -> Rotation:
    """Decide what a rotation does. Raises ConfigError."""
    source, ring, new = _source(config), Keyring(), list[str]()
    place = source.place.file
    if place is None or Path(place).exists():
        ring = read_keyring(source)
    logs = recorded(config)
    primary = ring.primary_of("hash")
    stale = [name for name, one in logs.items() if one.hash_key and primary and one.hash_key != primary.number]
    if not break_joins:
        purposes: list[Purpose] = ["encrypt"] if ring.hash_keys else ["encrypt", "hash"]
    else:
        purposes = [] if stale else ["hash"]  # a key that is in the file already is entered
    for purpose in purposes:
        ring = ring.with_new(purpose)
        new.append(f"{purpose} key {ring.primary[purpose]}")
    if break_joins:
        stale = [name for name, one in logs.items() if one.hash_key]
    return Rotation(source, ring if new else None, new, stale if break_joins else [])


def run_rotate(config: Config, *, break_joins: bool, write: bool, as_json: bool, out: Console) -> bool:
    """Show what becomes of the keyring, and change it if asked. Returns whether there is anything to do."""
    found = planned(config, break_joins=break_joins)
    if write:
        for name in found.logs:
            check_no_driver(config, name, "Stop it: its rows are hashed with the former key until it starts again.")
        if found.ring is not None:
            write_keyring(found.source, found.ring)
        hash_key = replace(primary_keys(found.source), encrypt=None)
        for name in found.logs:
            main_table(name, config).set_hash_key(hash_key.ids, hash_key.numbers)
    if as_json:
        tables.emit_whole({"keyring": str(found.source.place), "new": found.new, "joins_break": found.logs})
        return bool(found.new or found.logs)
    verb = "was made" if write else "is made"
    for one in found.new:
        tables.sentence(out, f"{one} {verb} in {found.source.place}, for new values; former keys stay, for reading.")
    for name in found.logs:
        tables.sentence(out, f"pipeline {name}: hashes of rows from the next start on equal none of the rows before.")
    if write and found.new and not found.logs:
        tables.sentence(out, "Give executors the same keyring, then restart the writer.")
    return bool(found.new or found.logs)


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
    given = load(config)

    def work(*, write: bool) -> bool:
        return run_rotate(given, break_joins=break_joins, write=write, as_json=as_json, out=console())

    confirm(work, yes=yes, dry_run=dry_run, as_json=as_json)


def _source(config: Config) -> KeySource:
    if config.keys is None:
        raise ConfigError(
            "the configuration has no section `keys`; add one, such as keys: {file: /etc/headrace/keys.json}"
        )
    return config.keys.source
