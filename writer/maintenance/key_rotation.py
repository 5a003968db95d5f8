"""Keys of privacy: lists and tries those of the keyring, and makes new ones."""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from pathlib import Path

import pyarrow as pa

from headrace.writer.clients.driver_endpoint import check_no_driver
from headrace.writer.commit.privacy import RecordedPrivacy, primary_keys
from headrace.writer.config.pipelines import Config
from headrace.writer.core.errors import ConfigError
from headrace.writer.core.text import join_first
from headrace.writer.privacy.encryption import decrypt_text, encrypt_values
from headrace.writer.privacy.hashing import hash_values
from headrace.writer.privacy.keyring import (
    PURPOSES,
    KeyId,
    Keyring,
    KeySource,
    Purpose,
    fingerprint,
    read_keyring,
    write_keyring,
)
from headrace.writer.table.factory import main_table

_PIPELINES_NAMED = 3
# RFC 4231, test case 2: key, value and their HMAC-SHA-256.
_HMAC_KEY = b"Jefe"
_HMAC_VALUE = b"what do ya want for nothing?"
_HMAC_DIGEST = "5bdcc146bf60754e6a042426089575c75a003f089d2739839dec58b964ec3843"


@dataclass(frozen=True)
class ListedKey:
    """One key of the keyring, without its bytes."""

    purpose: Purpose
    id: str
    fingerprint: str
    primary: bool
    # Those whose log says that new values get it.
    pipelines: list[str]


@dataclass(frozen=True)
class KeyCheck:
    """The keys of a keyring, and how they fit the logs of the tables."""

    keyring: str
    keys: list[ListedKey]
    # Pipelines whose log names a key that the keyring lacks, with its purpose.
    missing: list[str]

    @property
    def outdated_hash_key(self) -> str | None:
        """A hash key that is in use, although another one is primary."""
        keys = [key.id for key in self.keys if key.purpose == "hash" and not key.primary and key.pipelines]
        return keys[0] if keys else None


def check_keys(config: Config) -> KeyCheck:
    """Open and try all keys, and compare them with the logs. Raises ConfigError where a key cannot be used."""
    source = key_source(config)
    keyring = read_keyring(source)
    _try_keys(keyring)
    logs = _read_recorded_privacy(config)
    keys = list(_list_keys(keyring, logs))
    missing: list[str] = []
    for name, recorded in logs.items():
        purposes = {key.purpose for key in keys if name in key.pipelines}
        missing += [f"{name} ({purpose})" for purpose in PURPOSES if recorded.keys[purpose] and purpose not in purposes]
    return KeyCheck(str(source.place), keys, missing)


class KeyRotation:
    """The keys that are to be made, and the step that makes them."""

    def __init__(self, config: Config, *, break_joins: bool, accept_loss: bool = False) -> None:
        """Decide what changes. `break_joins`: a new hash key, in place of one for encryption.

        `accept_loss`: values are given up whose keys the keyring lacks. Raises ConfigError, also where there is no
        keyring though logs know its keys.
        """
        self._config = config
        self._source = key_source(config)
        self._keyring = Keyring()
        logs = _read_recorded_privacy(config)
        file = self._source.place.file
        if file is None or Path(file).exists():
            self._keyring = read_keyring(self._source)
        elif not accept_loss:
            _refuse_used_keys(self._source, logs)
        # Keys that are made.
        self.new_keys: list[str] = []
        # Those whose log gets another hash key.
        self.pipelines: list[str] = []
        # Those whose log gets another key for encryption: nobody can read the values of their rows.
        self.unreadable: list[str] = []
        if break_joins:
            self.pipelines = [name for name, recorded in logs.items() if recorded.hash_key]
        if accept_loss:
            self.pipelines = self._lacking("hash", logs)
            self.unreadable = self._lacking("encrypt", logs)
        for purpose in self._choose_purposes(logs, break_joins=break_joins, accept_loss=accept_loss):
            self._keyring = self._keyring.with_new(purpose)
            self.new_keys.append(f"{purpose} key {self._keyring.primary[purpose]}")

    @property
    def keyring_name(self) -> str:
        """Where the keyring is, for a person."""
        return str(self._source.place)

    def carry_out(self) -> None:
        """Write the keyring, and enter the hash key in the logs. Raises ConfigError, DriverAlive, CommitFailed."""
        for name in dict.fromkeys([*self.pipelines, *self.unreadable]):
            check_no_driver(self._config, name, "Stop it: its rows get the former key until it starts again.")
        if self.new_keys:
            write_keyring(self._source, self._keyring)
        keys = primary_keys(self._source)
        changes = ((self.pipelines, replace(keys, encrypt=None)), (self.unreadable, replace(keys, hash=None)))
        for pipelines, new_keys in changes:
            for name in pipelines:
                main_table(name, self._config).set_keys(new_keys.ids, new_keys.numbers)

    def _lacking(self, purpose: Purpose, logs: Mapping[str, RecordedPrivacy]) -> list[str]:
        """Return the pipelines whose log names a key of this purpose that the keyring lacks."""
        numbers = self._keyring.numbers_of(purpose)
        return [
            name for name, recorded in logs.items() if recorded.keys[purpose] and recorded.keys[purpose] not in numbers
        ]

    def _choose_purposes(
        self, logs: Mapping[str, RecordedPrivacy], *, break_joins: bool, accept_loss: bool
    ) -> list[Purpose]:
        """Return the purposes for which a key is made."""
        if accept_loss:
            return [purpose for purpose in PURPOSES if not self._keyring.of(purpose)]
        if not break_joins:
            return ["encrypt"] if self._keyring.hash_keys else ["encrypt", "hash"]
        primary = self._keyring.primary_of("hash")
        for recorded in logs.values():
            if recorded.hash_key and primary and recorded.hash_key != primary.number:
                # The keyring has a new hash key already: only the logs lack it.
                return []
        return ["hash"]


def _refuse_used_keys(source: KeySource, logs: Mapping[str, RecordedPrivacy]) -> None:
    """Raise ConfigError where logs know keys of a keyring that is not there: a new one reads none of their values."""
    pipelines = [name for name, recorded in logs.items() if any(recorded.keys.values())]
    if pipelines:
        raise ConfigError(
            f"there is no keyring in {source.place}, and rows of {join_first(pipelines, _PIPELINES_NAMED)} were hashed "
            "or encrypted with keys of one: no other key reads them. Put it back, or mount what holds it. If it is "
            "lost for good, `headrace keys rotate --accept-loss` makes a new one and gives these values up."
        )


def key_source(config: Config) -> KeySource:
    """Return where the keyring is. Raises ConfigError where the configuration does not say."""
    if config.keys is None:
        raise ConfigError(
            "the configuration has no section `keys`; add one, such as keys: {file: /etc/headrace/keys.json}"
        )
    return config.keys.source


def _read_recorded_privacy(config: Config) -> dict[str, RecordedPrivacy]:
    """Return what the logs of pipelines have of privacy, where they have some."""
    recorded: dict[str, RecordedPrivacy] = {}
    for name in config.pipelines:
        table = main_table(name, config)
        if not table.exists():
            continue
        snapshot = table.snapshot()
        if snapshot.privacy:
            recorded[name] = RecordedPrivacy.of(snapshot)
    return recorded


def _list_keys(keyring: Keyring, logs: Mapping[str, RecordedPrivacy]) -> Iterator[ListedKey]:
    for purpose in PURPOSES:
        for name, key in keyring.of(purpose).items():
            key_id = KeyId(name, fingerprint(key))
            pipelines = [pipeline for pipeline, recorded in logs.items() if recorded.keys[purpose] == key_id.number]
            yield ListedKey(purpose, name, key_id.fingerprint, keyring.primary[purpose] == name, pipelines)


def _try_keys(keyring: Keyring) -> None:
    """Hash and encrypt with each key, and read back. Raises ConfigError."""
    if hash_values(pa.array([_HMAC_VALUE]), _HMAC_KEY)[0].as_py() != _HMAC_DIGEST:
        raise ConfigError("HMAC-SHA-256 does not give the digest of RFC 4231 on this machine; install headrace anew")
    for name, key in keyring.encryption_keys.items():
        text = encrypt_values(pa.array([_HMAC_VALUE]), name, key)[0].as_py()
        if decrypt_text(text, key) != _HMAC_VALUE:
            raise ConfigError(f"what encryption key {name} encrypts is not read back; install headrace anew")
