"""The keys that values are hashed and encrypted with: a JSON document in a file or an environment variable.

    {"hash": {"primary": "h1", "keys": {"h1": "<base64>"}},
     "encrypt": {"primary": "k2", "keys": {"k1": "<base64>", "k2": "<base64>"}}}

The primary key is used for new values, the others for reading. A key may be wrapped by another: then the text is what
KeyWrap made of it. Driver and tasks read the same place; the plan of a task has ids and fingerprints, never keys.
"""

import json
import os
import re
import stat
from base64 import b64decode, b64encode
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from functools import lru_cache
from hashlib import sha256
from importlib import import_module
from pathlib import Path
from typing import Literal, NoReturn, Protocol

from cryptography.exceptions import InvalidTag
from cryptography.hazmat.primitives.ciphers.aead import AESGCM

from headrace.writer.core.errors import ConfigError, file_error
from headrace.writer.privacy.encryption import KEY_BYTES

Purpose = Literal["hash", "encrypt"]
PURPOSES: tuple[Purpose, ...] = ("hash", "encrypt")
HASH_KEY_BYTES_MIN = 16
_ID = re.compile(r"[A-Za-z0-9_-]{1,32}")
_FINGERPRINT_OF = b"headrace key fingerprint 1\0"
_FINGERPRINT_BYTES = 8
_NONCE_BYTES = 12


class KeyWrap(Protocol):
    """A key that wraps others, such as one of Vault or a KMS; `type: 'module:Class'` names it.

    For `keys.wrap` it needs both methods, for `privacy.decrypt` unwrap, which gets the registry's base64 of a data key
    and, as the name, the address of the key that encrypted it, such as aws-kms://arn:aws:kms:….
    """

    def __init__(self, **options: str) -> None:
        """`options`: those of the configuration. Raises ConfigError."""

    def wrap(self, key: bytes, name: str) -> str:
        """Encrypt a key, for a keyring. `name`: its purpose and id, which unwrapping must be given again."""

    def unwrap(self, text: str, name: str) -> bytes:
        """Return the key. Raises ConfigError."""


@dataclass(frozen=True)
class KeyId:
    """One key, without its bytes."""

    id: str
    # 16 hexadecimal digits.
    fingerprint: str

    @property
    def number(self) -> int:
        """63 bits of the fingerprint, as a table's log keeps it."""
        return int(self.fingerprint, 16) >> 1


@dataclass(frozen=True)
class KeyringPlace:
    """A file, or a variable of the environment."""

    file: str | None = None
    env: str | None = None

    def __str__(self) -> str:
        if self.file:
            return f"the file {self.file}"
        return f"the environment variable {self.env}"

    def text(self, content: str, fix: str = "`headrace keys rotate` makes a keyring") -> str:
        """Read it. Raises ConfigError where it is missing, or open to other users of the machine.

        `content`: what it holds, as an error names it; `fix`: what to do where it cannot be read.
        """
        if self.file is None:
            value = os.environ.get(self.env or "")
            if not value:
                raise ConfigError(
                    f"{content} is to be in {self}, which is not set. Set it where driver and executors run."
                )
            return value
        try:
            if Path(self.file).stat().st_mode & stat.S_IRWXO:
                raise ConfigError(f"{content} in {self} can be read by every user of the machine; chmod 600 it")
            return Path(self.file).read_text(encoding="utf-8")
        except (OSError, UnicodeDecodeError) as error:
            reason: str | None = "it is not UTF-8"
            if isinstance(error, OSError):
                reason = error.strerror
            text = (
                f"cannot read {content} from {self}: {reason}. {fix}; driver and executors need it at the same place."
            )
            raise file_error(text, error) from error


@dataclass(frozen=True)
class WrapSource:
    """Where the key is that unwraps a keyring: itself at a place, or behind a class."""

    place: KeyringPlace | None = None
    # module:Class of a KeyWrap.
    type: str = ""
    options: tuple[tuple[str, str], ...] = ()

    def open(self) -> KeyWrap:
        """Return the key that wraps a keyring, ready. Raises ConfigError."""
        if self.place is None:
            return self.make_key_wrap("keys.wrap")
        text = self.place.text("the key that wraps the keyring").strip()
        return _AesKeyWrap(_parse_aes_key(text, "keys.wrap"))

    def make_key_wrap(self, setting: str) -> KeyWrap:
        """Return an object of the class. Raises ConfigError. `setting`: that names it."""
        module, _, name = self.type.partition(":")
        try:
            key_wrap: KeyWrap = getattr(import_module(module), name)(**dict(self.options))
        except (ImportError, AttributeError, TypeError) as error:
            raise ConfigError(f"{setting}.type: cannot make {self.type!r}: {error}") from error
        return key_wrap


class _AesKeyWrap:
    """Wraps keys by AES-256-GCM under one key."""

    def __init__(self, key: bytes) -> None:
        self._cipher = AESGCM(key)

    def wrap(self, key: bytes, name: str) -> str:
        nonce = os.urandom(_NONCE_BYTES)
        return b64encode(nonce + self._cipher.encrypt(nonce, key, name.encode())).decode()

    def unwrap(self, text: str, name: str) -> bytes:
        sealed = _decode_base64(text, name)
        try:
            return self._cipher.decrypt(sealed[:_NONCE_BYTES], sealed[_NONCE_BYTES:], name.encode())
        except (InvalidTag, ValueError) as error:
            raise ConfigError(
                f"the keyring's {name} was wrapped with another key than keys.wrap has, or changed since"
            ) from error


@dataclass(frozen=True)
class KeySource:
    """Where the keyring is, and which of its keys new values get; the plan of a task carries it."""

    place: KeyringPlace
    wrap: WrapSource | None = None
    hash: KeyId | None = None
    encrypt: KeyId | None = None

    @property
    def keys(self) -> dict[Purpose, KeyId]:
        """The keys that new values get, by purpose."""
        both: tuple[tuple[Purpose, KeyId | None], ...] = (("hash", self.hash), ("encrypt", self.encrypt))
        return {purpose: key for purpose, key in both if key is not None}

    @property
    def ids(self) -> dict[str, dict[str, str]]:
        """The same as JSON values."""
        return {purpose: {"id": key.id, "fingerprint": key.fingerprint} for purpose, key in self.keys.items()}

    @property
    def numbers(self) -> dict[str, int]:
        """The same as a table's log keeps them."""
        return {purpose: key.number for purpose, key in self.keys.items()}


@dataclass(frozen=True, repr=False)
class Keyring:
    """All keys, by id. Shows none of them, and is sent to no other process."""

    hash_keys: Mapping[str, bytes] = field(default_factory=dict)
    encryption_keys: Mapping[str, bytes] = field(default_factory=dict)
    primary: Mapping[Purpose, str] = field(default_factory=dict)

    def __repr__(self) -> str:
        return f"Keyring({', '.join([*self.hash_keys, *self.encryption_keys])})"

    def __reduce__(self) -> NoReturn:
        raise TypeError("keys are not sent to other processes; send a KeySource")

    def of(self, purpose: Purpose) -> Mapping[str, bytes]:
        """The keys of a purpose, by id."""
        if purpose == "hash":
            return self.hash_keys
        return self.encryption_keys

    def numbers_of(self, purpose: Purpose) -> set[int]:
        """The numbers of these keys, as logs have them."""
        return {KeyId(key_id, fingerprint(key)).number for key_id, key in self.of(purpose).items()}

    def primary_of(self, purpose: Purpose) -> KeyId | None:
        """The key that new values get; None: there is none."""
        key_id = self.primary.get(purpose)
        if key_id is None:
            return None
        return KeyId(key_id, fingerprint(self.of(purpose)[key_id]))

    def with_new(self, purpose: Purpose) -> "Keyring":
        """Return a keyring with a random key more, which is the primary one."""
        keys = self.of(purpose)
        prefix = "k"
        if purpose == "hash":
            prefix = "h"
        ids = (f"{prefix}{number}" for number in range(1, len(keys) + 2))
        key_id = next(free_id for free_id in ids if free_id not in keys)
        extended_keys = {**keys, key_id: os.urandom(KEY_BYTES)}
        primary = {**self.primary, purpose: key_id}
        if purpose == "hash":
            return replace(self, primary=primary, hash_keys=extended_keys)
        return replace(self, primary=primary, encryption_keys=extended_keys)

    def to_text(self, wrap: WrapSource | None) -> str:
        """Return its text as a file has it."""
        key_wrap = None
        if wrap is not None:
            key_wrap = wrap.open()
        sections = {}
        for purpose in PURPOSES:
            if purpose not in self.primary:
                continue
            texts = {}
            for key_id, key in self.of(purpose).items():
                name = f"{purpose} key {key_id}"
                texts[key_id] = b64encode(key).decode() if key_wrap is None else key_wrap.wrap(key, name)
            sections[purpose] = {"primary": self.primary[purpose], "keys": texts}
        return json.dumps(sections, indent=2) + "\n"


def fingerprint(key: bytes) -> str:
    """Return what tells keys apart and says nothing of them: 8 bytes of SHA-256 of a fixed text and the key."""
    return sha256(_FINGERPRINT_OF + key).hexdigest()[: 2 * _FINGERPRINT_BYTES]


@dataclass(frozen=True)
class _KeyringSection:
    """The keys of one purpose, as their document has them: by id, base64 or wrapped."""

    primary: str
    texts: Mapping[str, str]


def read_keyring(source: KeySource) -> Keyring:
    """Read and check a keyring. Raises ConfigError, which names no key."""
    text = source.place.text("the keyring")
    key_wrap = None
    if source.wrap is not None:
        key_wrap = source.wrap.open()
    try:
        sections = _parse_sections(text)
    except (ValueError, KeyError, TypeError, AttributeError):
        # The text of the error may hold a key.
        raise ConfigError(
            f'the keyring in {source.place} cannot be read; it is {{"hash": {{"primary": "h1", "keys": {{"h1": '
            '"<base64>"}}, "encrypt": …}'
        ) from None
    keys: dict[Purpose, dict[str, bytes]] = {purpose: {} for purpose in PURPOSES}
    primary = dict[Purpose, str]()
    for purpose, section in sections.items():
        for key_id, key_text in section.texts.items():
            name = f"{purpose} key {key_id}"
            if not _ID.fullmatch(key_id):
                raise ConfigError(f"the keyring's {name}: an id has letters, digits, - and _, 32 at most")
            key = _decode_base64(key_text, name) if key_wrap is None else key_wrap.unwrap(key_text, name)
            _check_length(key, purpose, name)
            keys[purpose][key_id] = key
        if section.texts:
            if section.primary not in section.texts:
                raise ConfigError(f"the keyring's {purpose}.primary is {section.primary!r}, which is none of its keys")
            primary[purpose] = section.primary
    return Keyring(keys["hash"], keys["encrypt"], primary)


def _parse_sections(text: str) -> dict[Purpose, _KeyringSection]:
    """Raises ValueError, KeyError, TypeError and AttributeError for what is no keyring."""
    document = dict(json.loads(text).items())
    sections: dict[Purpose, _KeyringSection] = {}
    for purpose in PURPOSES:
        if purpose in document:
            raw = dict(document[purpose])
            texts = {str(key_id): str(key_text) for key_id, key_text in raw["keys"].items()}
            sections[purpose] = _KeyringSection(str(raw["primary"]), texts)
    return sections


@lru_cache(maxsize=8)
def open_keyring(source: KeySource) -> Keyring:
    """Return the keyring of a plan; a process reads it once. Raises ConfigError where it lacks the plan's keys."""
    keyring = read_keyring(source)
    for purpose, key_id in source.keys.items():
        key = keyring.of(purpose).get(key_id.id)
        if key is None or fingerprint(key) != key_id.fingerprint:
            raise ConfigError(
                f"the keyring in {source.place} has no {purpose} key {key_id.id} with fingerprint "
                f"{key_id.fingerprint}, which the driver has. Give driver and executors the same keyring."
            )
    return keyring


def write_keyring(source: KeySource, keyring: Keyring) -> None:
    """Put a keyring in place of the file, whole or not at all. Raises ConfigError."""
    if source.place.file is None:
        raise ConfigError(
            f"the keyring is in {source.place}, which no command can change; set keys.file to a file, rotate there, "
            "and set the variable to its text"
        )
    path = Path(source.place.file)
    text = keyring.to_text(source.wrap)
    draft = path.with_name(f".{path.name}.{os.getpid()}")
    try:
        with os.fdopen(os.open(draft, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "w", encoding="utf-8") as out:
            out.write(text)
            out.flush()
            os.fsync(out.fileno())
        draft.replace(path)
    except OSError as error:
        draft.unlink(missing_ok=True)
        raise ConfigError(f"cannot write the keyring to {path}: {error.strerror}") from error


def _check_length(key: bytes, purpose: Purpose, name: str) -> None:
    if purpose == "encrypt" and len(key) != KEY_BYTES:
        raise ConfigError(f"the keyring's {name} has {len(key)} bytes; AES-256 needs {KEY_BYTES}")
    if len(key) < HASH_KEY_BYTES_MIN:
        raise ConfigError(f"the keyring's {name} has {len(key)} bytes; give it {KEY_BYTES}")


def _parse_aes_key(text: str, name: str) -> bytes:
    key = _decode_base64(text, name)
    _check_length(key, "encrypt", name)
    return key


def _decode_base64(text: str, name: str) -> bytes:
    try:
        return b64decode(text, validate=True)
    except ValueError:
        raise ConfigError(f"the keyring's {name} is not base64; `openssl rand -base64 32` makes one") from None
