"""Decrypts fields that producers encrypted by Confluent's client-side field level encryption (CSFLE).

A value is encrypted under a data encryption key (DEK) by a raw primitive of Tink, without associated data: AES-GCM as
nonce (12 bytes), ciphertext, tag (16), or AES-SIV (RFC 5297) over one empty header. Where the rule renews its keys
(`encrypt.dek.expiry.days`), a byte 0 and the key's version (4 bytes, big-endian) stand before it. A field of type
string holds all that as base64. A DEK is encrypted by a key encryption key (KEK); unwrapped, it is Tink's message of a
key, AesGcmKey or AesSivKey. So Confluent's clients do it: EncryptionExecutor and LocalKmsClient in
confluent-kafka-python.
"""

from base64 import b64decode
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from functools import lru_cache

import numpy as np
import numpy.typing as npt
import pyarrow as pa
from cryptography.exceptions import InvalidTag
from cryptography.hazmat.primitives.ciphers.aead import AESGCM, AESSIV
from cryptography.hazmat.primitives.hashes import SHA256
from cryptography.hazmat.primitives.kdf.hkdf import HKDF

from headrace.bucketers.arrow import contiguous
from headrace.writer.core.errors import ConfigError
from headrace.writer.privacy.column_protection import ColumnPath, change_children
from headrace.writer.privacy.hashing import has_repeats
from headrace.writer.privacy.keyring import KeyWrap, WrapSource

# Type of a KMS that is no more than a secret.
LOCAL_KMS = "local-kms"
# Bytes of the key by algorithm, and the tag of its field in Tink's message.
ALGORITHMS: Mapping[str, tuple[int, int]] = {
    "AES256_GCM": (32, 0x1A),
    "AES128_GCM": (16, 0x1A),
    "AES256_SIV": (64, 0x12),
}
_NONCE_BYTES = 12
_VERSION_BYTES = 5
_LOCAL_KEY_BYTES = 16
_FIRST_VERSION = 1
# Versions count up by one: one far above the newest known is no version.
_AHEAD_MAX = 16
_OTHER_KEY = "it was encrypted with another data key, or not at all"
_NO_KEY = "the registry has no such data key"
_Decrypt = Callable[[bytes], bytes]


@dataclass(frozen=True)
class Kek:
    """A key encryption key, and how this process comes by it."""

    name: str
    # Type of its KMS.
    kms: str
    # In its KMS.
    key_id: str
    source: WrapSource

    def unwrap(self, text: str) -> bytes:
        """Return what the KEK encrypted to this base64. Raises ConfigError."""
        if self.source.place is None:
            return kms_of(self.name, self.source).unwrap(text, f"{self.kms}://{self.key_id}")
        if self.kms != LOCAL_KMS:
            raise ConfigError(
                f"the KEK {self.name!r} is one of {self.kms}, and privacy.decrypt.{self.name} has a secret, which is "
                f"for {LOCAL_KMS}; give it a `type`, which is a class that asks that KMS"
            )
        secret = secret_of(self.name, self.source)
        key = HKDF(SHA256(), _LOCAL_KEY_BYTES, salt=None, info=b"").derive(secret.encode())
        try:
            sealed = b64decode(text, validate=True)
            return AESGCM(key).decrypt(sealed[:_NONCE_BYTES], sealed[_NONCE_BYTES:], None)
        except (InvalidTag, ValueError) as error:
            raise ConfigError(
                f"{self.source.place} has another secret of the KEK {self.name!r} than the one by which producers "
                "encrypted the registry's data keys. Give driver and executors that one."
            ) from error


@lru_cache(maxsize=64)
def kms_of(name: str, source: WrapSource) -> KeyWrap:
    """Return the object of a user's class that asks a KMS; a process makes it once. Raises ConfigError."""
    return source.make_key_wrap(f"privacy.decrypt.{name}")


def secret_of(name: str, source: WrapSource) -> str:
    """Return the secret of a KEK of a local KMS. Raises ConfigError."""
    assert source.place is not None, "a class keeps its secret to itself"
    return source.place.text(f"the secret of the KEK {name!r}", "The producers' secret is to stand there").strip()


@dataclass(frozen=True)
class DataKey:
    """A data encryption key, as the registry keeps it: encrypted."""

    subject: str
    version: int
    # Base64.
    wrapped: str

    def unwrap(self, kek: Kek, algorithm: str) -> _Decrypt:
        """Return what decrypts values of this key; a process unwraps it once. Raises ConfigError."""
        return _unwrap_cipher(kek, algorithm, self.wrapped)


@dataclass(frozen=True)
class EncryptedFields:
    """The fields of a schema that one rule encrypts, and the keys."""

    paths: tuple[ColumnPath, ...]
    kek: Kek
    algorithm: str
    # A value names the version of its key.
    has_versions: bool
    # Whose keys may have encrypted it.
    subjects: tuple[str, ...]
    keys: tuple[DataKey, ...] = ()

    def may_lack(self, version: int) -> bool:
        """Return whether a subject may have a key of this version by now that is not here."""
        newest = max((key.version for key in self.keys), default=0)
        return version <= newest + _AHEAD_MAX and sum(key.version == version for key in self.keys) < len(self.subjects)


@dataclass(frozen=True)
class Decryption:
    """How the encrypted fields of a schema are decrypted."""

    # In the order in which they are undone.
    rules: tuple[EncryptedFields, ...] = ()
    # Why they cannot be.
    problem: str = ""
    # Keys that are not here were asked for in this batch, and are not in the registry.
    is_settled: bool = False

    def check(self) -> None:
        """Unwrap all keys. Raises ConfigError."""
        for rule in self.rules:
            for key in rule.keys:
                key.unwrap(rule.kek, rule.algorithm)

    def decrypt(self, rows: pa.Table) -> "DecryptedRows":
        """Decrypt fields of rows. Raises ConfigError where this process cannot unwrap a key."""
        failures = dict[int, str]()
        lacks_keys = False
        for rule in self.rules:
            for path in rule.paths:
                field = _FieldDecryption(rule, path)
                index = rows.schema.get_field_index(path[0])
                column = field.decrypt(contiguous(rows.column(index)), path[1:], np.arange(rows.num_rows))
                rows = rows.set_column(index, path[0], column)
                lacks_keys = lacks_keys or field.lacks_keys
                failures = {**field.failures, **failures}
        return DecryptedRows(rows, failures, lacks_keys and not self.is_settled)


@dataclass(frozen=True)
class DecryptedRows:
    """Rows with their fields decrypted."""

    rows: pa.Table
    # Position of a row → why a field of it does not decrypt; the field is null.
    failures: Mapping[int, str]
    # The registry may have a key by now that such a value needs.
    lacks_keys: bool


class _FieldDecryption:
    """Decrypts the values of one field."""

    def __init__(self, rule: EncryptedFields, path: ColumnPath) -> None:
        self._rule = rule
        self._ciphers = dict[int, list[_Decrypt]]()
        self._failure = f"field {'.'.join(path)!r} does not decrypt with the KEK {rule.kek.name!r}: "
        self.failures = dict[int, str]()
        self.lacks_keys = False

    def decrypt(self, values: pa.Array, steps: ColumnPath, rows: npt.NDArray[np.int64]) -> pa.Array:
        """Decrypt what lies behind further steps in values. `rows`: the position of the row of each value."""
        if not steps:
            return self._decrypt_scalars(values, rows)

        def decrypt_child(child: pa.Array, step: str, parents: npt.NDArray[np.int64] | None) -> pa.Array:
            if step != steps[0]:
                return child
            return self.decrypt(child, steps[1:], rows if parents is None else rows[parents])

        return change_children(values, decrypt_child)

    def _decrypt_scalars(self, values: pa.Array, rows: npt.NDArray[np.int64]) -> pa.Array:
        """Decrypt values, each different one once where they repeat, and note the rows that fail.

        Values A, B, A of the rows 4, 5, 6, of which A does not decrypt → null, b, null; failures of the rows 4 and 6.
        """
        if not has_repeats(values):
            decrypted, failures = self._decrypt_each(values.to_pylist(), values.type)
            self.failures |= {int(rows[position]): reason for position, reason in failures.items()}
            return decrypted
        encoded = values.dictionary_encode()
        decrypted, failures = self._decrypt_each(encoded.dictionary.to_pylist(), values.type)
        if failures:
            codes = encoded.indices.fill_null(-1).to_numpy()
            for position in np.flatnonzero(np.isin(codes, [*failures])):
                self.failures[int(rows[position])] = failures[codes[position]]
        return decrypted.take(encoded.indices)

    def _decrypt_each(self, values: Iterable[str | bytes | None], kind: pa.DataType) -> tuple[pa.Array, dict[int, str]]:
        """Decrypt one by one: no library takes a column. Returns why values at some positions do not decrypt."""
        is_text = pa.types.is_string(kind)
        decrypted = list[str | bytes | None]()
        failures = dict[int, str]()
        for position, value in enumerate(values):
            version = _FIRST_VERSION
            plain: str | bytes | None = None
            try:
                if value is not None:
                    sealed = b64decode(value, validate=True) if isinstance(value, str) else value
                    if self._rule.has_versions:
                        version = int.from_bytes(sealed[1:_VERSION_BYTES], "big") or _FIRST_VERSION
                        sealed = sealed[_VERSION_BYTES:]
                    content = self._decrypt_value(sealed, version)
                    plain = content.decode() if is_text else content
            except (InvalidTag, ValueError):
                self.lacks_keys |= self._rule.may_lack(version)
                has_keys = any(key.version == version for key in self._rule.keys)
                failures[position] = self._failure + (_OTHER_KEY if has_keys else _NO_KEY)
            decrypted.append(plain)
        return pa.array(decrypted, kind), failures

    def _decrypt_value(self, sealed: bytes, version: int) -> bytes:
        """Try the keys of this version, first the one that fitted last. Raises InvalidTag, ValueError."""
        if version not in self._ciphers:
            keys = [key for key in self._rule.keys if key.version == version]
            self._ciphers[version] = [key.unwrap(self._rule.kek, self._rule.algorithm) for key in keys]
        ciphers = self._ciphers[version]
        for index, cipher in enumerate(ciphers):
            try:
                plain = cipher(sealed)
            except InvalidTag:
                continue
            if index:
                ciphers.insert(0, ciphers.pop(index))
            return plain
        raise InvalidTag


@lru_cache(maxsize=1024)
def _unwrap_cipher(kek: Kek, algorithm: str, wrapped: str) -> _Decrypt:
    size, tag = ALGORITHMS[algorithm]
    material = kek.unwrap(wrapped)
    key = material[-size:]
    if not material[:-size].endswith(bytes([tag, size])):
        raise ConfigError(f"a data key that the KEK {kek.name!r} unwraps is no {algorithm} key of Tink")
    if algorithm == "AES256_SIV":
        siv = AESSIV(key)
        return lambda sealed: siv.decrypt(sealed, [b""])
    gcm = AESGCM(key)
    return lambda sealed: gcm.decrypt(sealed[:_NONCE_BYTES], sealed[_NONCE_BYTES:], None)
