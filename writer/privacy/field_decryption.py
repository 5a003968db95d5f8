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

from bucketers.arrow import contiguous
from writer.core.errors import ConfigError
from writer.privacy.column_protection import Place, rebuilt
from writer.privacy.hashing import repeat
from writer.privacy.keyring import KeyWrap, WrapSource

LOCAL_KMS = "local-kms"  # type of a KMS that is no more than a secret
# Bytes of the key by algorithm, and the tag of its field in Tink's message.
ALGORITHMS: Mapping[str, tuple[int, int]] = {"AES256_GCM": (32, 0x1A), "AES128_GCM": (16, 0x1A),
                                             "AES256_SIV": (64, 0x12)}  # fmt: skip
_NONCE_BYTES, _VERSION_BYTES, _LOCAL_KEY_BYTES = 12, 5, 16
_FIRST_VERSION, _AHEAD_MAX = 1, 16  # versions count up by one: one far above the newest known is no version
_OTHER_KEY, _NO_KEY = "it was encrypted with another data key, or not at all", "the registry has no such data key"
_Open = Callable[[bytes], bytes]


@dataclass(frozen=True)
class Kek:
    """A key encryption key, and how this process comes by it."""

    name: str
    kms: str  # type of its KMS
    key_id: str  # in its KMS
    source: WrapSource

    def unwrapped(self, text: str) -> bytes:
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
    return source.made(f"privacy.decrypt.{name}")


def secret_of(name: str, source: WrapSource) -> str:
    """Return the secret of a KEK of a local KMS. Raises ConfigError."""
    assert source.place is not None, "a class keeps its secret to itself"
    return source.place.text(f"the secret of the KEK {name!r}", "The producers' secret is to stand there").strip()


@dataclass(frozen=True)
class DataKey:
    """A data encryption key, as the registry keeps it: encrypted."""

    subject: str
    version: int
    wrapped: str  # base64

    def unwrapped(self, kek: Kek, algorithm: str) -> _Open:
        """Return what decrypts values of this key; a process unwraps it once. Raises ConfigError."""
        return _cipher(kek, algorithm, self.wrapped)


@dataclass(frozen=True)
class EncryptedFields:
    """The fields of a schema that one rule encrypts, and the keys."""

    places: tuple[Place, ...]
    kek: Kek
    algorithm: str
    has_versions: bool  # a value names the version of its key
    subjects: tuple[str, ...]  # whose keys may have encrypted it
    keys: tuple[DataKey, ...] = ()

    def may_lack(self, version: int) -> bool:
        """Return whether a subject may have a key of this version by now that is not here."""
        newest = max((key.version for key in self.keys), default=0)
        return version <= newest + _AHEAD_MAX and sum(key.version == version for key in self.keys) < len(self.subjects)


@dataclass(frozen=True)
class Decryption:
    """How the encrypted fields of a schema are decrypted."""

    rules: tuple[EncryptedFields, ...] = ()  # in the order in which they are undone
    problem: str = ""  # why they cannot be
    is_settled: bool = False  # keys that are not here were asked for in this batch, and are not in the registry

    def check(self) -> None:
        """Unwrap all keys. Raises ConfigError."""
        for rule in self.rules:
            for key in rule.keys:
                key.unwrapped(rule.kek, rule.algorithm)

    def opened(self, rows: pa.Table) -> "DecryptedRows":
        """Decrypt fields of rows. Raises ConfigError where this process cannot unwrap a key."""
        failures, lacks_keys = dict[int, str](), False
        for rule in self.rules:
            for place in rule.places:
                field = _Field(rule, place)
                at = rows.schema.get_field_index(place[0])
                column = field.opened(contiguous(rows.column(at)), place[1:], np.arange(rows.num_rows))
                rows, lacks_keys = rows.set_column(at, place[0], column), lacks_keys or field.lacks_keys
                failures = {**field.failures, **failures}
        return DecryptedRows(rows, failures, lacks_keys and not self.is_settled)


@dataclass(frozen=True)
class DecryptedRows:
    """Rows with their fields decrypted."""

    rows: pa.Table
    failures: Mapping[int, str]  # position of a row → why a field of it does not decrypt; the field is null
    lacks_keys: bool  # the registry may have a key by now that such a value needs


class _Field:
    """Decrypts the values of one field."""

    def __init__(self, rule: EncryptedFields, place: Place) -> None:
        self._rule, self._ciphers = rule, dict[int, list[_Open]]()
        self._failed = f"field {'.'.join(place)!r} does not decrypt with the KEK {rule.kek.name!r}: "
        self.failures, self.lacks_keys = dict[int, str](), False

    def opened(self, values: pa.Array, way: Place, rows: npt.NDArray[np.int64]) -> pa.Array:
        """Decrypt what lies further on the way in values. `rows`: in which row each of them stands."""
        if not way:
            return self._scalars(values, rows)

        def inside(child: pa.Array, step: str, parents: npt.NDArray[np.int64] | None) -> pa.Array:
            return child if step != way[0] else self.opened(child, way[1:], rows if parents is None else rows[parents])

        return rebuilt(values, inside)

    def _scalars(self, values: pa.Array, rows: npt.NDArray[np.int64]) -> pa.Array:
        if not repeat(values):
            found, failed = self._each(values.to_pylist(), values.type)
            self.failures |= {int(rows[at]): why for at, why in failed.items()}
            return found
        coded = values.dictionary_encode()
        found, failed = self._each(coded.dictionary.to_pylist(), values.type)
        if failed:
            codes = coded.indices.fill_null(-1).to_numpy()
            self.failures |= {int(rows[at]): failed[codes[at]] for at in np.flatnonzero(np.isin(codes, [*failed]))}
        return found.take(coded.indices)

    def _each(self, values: Iterable[str | bytes | None], kind: pa.DataType) -> tuple[pa.Array, dict[int, str]]:
        """Decrypt one by one: no library takes a column. Returns why values at some positions do not decrypt."""
        is_text, found, failed = pa.types.is_string(kind), list[str | bytes | None](), dict[int, str]()
        for at, value in enumerate(values):
            version, plain = _FIRST_VERSION, None
            try:
                if value is not None:
                    sealed = b64decode(value, validate=True) if isinstance(value, str) else value
                    if self._rule.has_versions:
                        version = int.from_bytes(sealed[1:_VERSION_BYTES], "big") or _FIRST_VERSION
                        sealed = sealed[_VERSION_BYTES:]
                    content = self._decrypted(sealed, version)
                    plain = content.decode() if is_text else content
            except (InvalidTag, ValueError):
                self.lacks_keys |= self._rule.may_lack(version)
                has_keys = any(key.version == version for key in self._rule.keys)
                failed[at] = self._failed + (_OTHER_KEY if has_keys else _NO_KEY)
            found.append(plain)
        return pa.array(found, kind), failed

    def _decrypted(self, sealed: bytes, version: int) -> bytes:
        """Try the keys of this version, first the one that fitted last. Raises InvalidTag, ValueError."""
        if version not in self._ciphers:
            keys = [key for key in self._rule.keys if key.version == version]
            self._ciphers[version] = [key.unwrapped(self._rule.kek, self._rule.algorithm) for key in keys]
        ciphers = self._ciphers[version]
        for at, cipher in enumerate(ciphers):
            try:
                plain = cipher(sealed)
            except InvalidTag:
                continue
            if at:
                ciphers.insert(0, ciphers.pop(at))
            return plain
        raise InvalidTag


@lru_cache(maxsize=1024)
def _cipher(kek: Kek, algorithm: str, wrapped: str) -> _Open:
    size, tag = ALGORITHMS[algorithm]
    material = kek.unwrapped(wrapped)
    key = material[-size:]
    if not material[:-size].endswith(bytes([tag, size])):
        raise ConfigError(f"a data key that the KEK {kek.name!r} unwraps is no {algorithm} key of Tink")
    if algorithm == "AES256_SIV":
        siv = AESSIV(key)
        return lambda sealed: siv.decrypt(sealed, [b""])
    gcm = AESGCM(key)
    return lambda sealed: gcm.decrypt(sealed[:_NONCE_BYTES], sealed[_NONCE_BYTES:], None)
