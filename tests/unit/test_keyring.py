"""The keyring: who may read its file, how it is wrapped, and where keys never stand."""

import json
import pickle
import stat
from base64 import b64encode
from pathlib import Path

import pytest

from headrace.writer.core.errors import ConfigError
from headrace.writer.privacy.keyring import (
    KeyId,
    Keyring,
    KeyringPlace,
    KeySource,
    WrapSource,
    fingerprint,
    open_keyring,
    read_keyring,
    write_keyring,
)


def ring_in(root: Path, text: str = "", mode: int = 0o600) -> KeySource:
    file = root / "keys.json"
    file.write_text(text)
    file.chmod(mode)
    return KeySource(KeyringPlace(str(file)))


def test_a_ring_is_written_so_that_only_its_user_reads_it(tmp_path: Path) -> None:
    source = KeySource(KeyringPlace(str(tmp_path / "keys.json")))
    ring = Keyring().with_new("hash").with_new("encrypt").with_new("encrypt")
    write_keyring(source, ring)
    assert stat.S_IMODE((tmp_path / "keys.json").stat().st_mode) == 0o600
    assert [one.name for one in tmp_path.iterdir()] == ["keys.json"]
    found = read_keyring(source)
    assert (found.hash_keys, found.encryption_keys, found.primary) == (
        ring.hash_keys, ring.encryption_keys, {"hash": "h1", "encrypt": "k2"},
    )  # fmt: skip


@pytest.mark.parametrize("wrapped_by", ["file", "env"])
def test_a_wrapped_ring_holds_no_key_in_the_clear(
    tmp_path: Path, wrapped_by: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    secret = b64encode(b"w" * 32).decode()
    (tmp_path / "wrap").write_text(secret + "\n")
    (tmp_path / "wrap").chmod(0o400)
    monkeypatch.setenv("WRAP", secret)
    place = KeyringPlace(str(tmp_path / "wrap")) if wrapped_by == "file" else KeyringPlace(env="WRAP")
    source = KeySource(KeyringPlace(str(tmp_path / "keys.json")), WrapSource(place))
    ring = Keyring().with_new("hash")
    write_keyring(source, ring)
    assert read_keyring(source).hash_keys == ring.hash_keys
    text = (tmp_path / "keys.json").read_text()
    assert b64encode(ring.hash_keys["h1"]).decode() not in text
    moved = json.loads(text)
    moved["hash"] = {"primary": "h2", "keys": {"h2": moved["hash"]["keys"]["h1"]}}
    (tmp_path / "keys.json").write_text(json.dumps(moved))
    with pytest.raises(ConfigError, match=r"hash key h2 was wrapped with another key than keys\.wrap has, or changed"):
        read_keyring(source)


class Reversed:
    """A KeyWrap of a test."""

    def __init__(self, **options: str) -> None:
        self.mount = options["mount"]

    def wrap(self, key: bytes, name: str) -> str:
        return f"{self.mount}/{name}/{key[::-1].hex()}"

    def unwrap(self, text: str, name: str) -> bytes:
        assert text.startswith(f"{self.mount}/{name}/")
        return bytes.fromhex(text.rpartition("/")[2])[::-1]


def test_a_class_of_ones_own_wraps_keys(tmp_path: Path) -> None:
    wrap = WrapSource(None, f"{__name__}:Reversed", (("mount", "transit"),))
    source, ring = KeySource(KeyringPlace(str(tmp_path / "keys.json")), wrap), Keyring().with_new("encrypt")
    write_keyring(source, ring)
    assert read_keyring(source).encryption_keys == ring.encryption_keys
    with pytest.raises(ConfigError, match=r"keys\.wrap\.type: cannot make 'nowhere:Class'"):
        WrapSource(None, "nowhere:Class").open()


KEY = b64encode(b"k" * 32).decode()


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("{", "cannot be read; it is"),
        ("[]", "cannot be read"),
        ('{"hash": {"keys": {}}}', "cannot be read"),
        (json.dumps({"hash": {"primary": "h1", "keys": {"h1": "%"}}}), "hash key h1 is not base64"),
        (json.dumps({"hash": {"primary": "h2", "keys": {"h1": KEY}}}), "primary is 'h2', which is none of its keys"),
        (json.dumps({"hash": {"primary": "a.b", "keys": {"a.b": KEY}}}), "an id has letters, digits"),
        (json.dumps({"hash": {"primary": "h", "keys": {"h": "AAAA"}}}), "hash key h has 3 bytes; give it 32"),
        (json.dumps({"encrypt": {"primary": "k", "keys": {"k": "A" * 24}}}), "has 18 bytes; AES-256 needs 32"),
    ],
)  # fmt: skip
def test_a_ring_that_cannot_be_used_is_refused_without_its_text(tmp_path: Path, text: str, message: str) -> None:
    with pytest.raises(ConfigError) as raised:
        read_keyring(ring_in(tmp_path, text))
    assert message in str(raised.value)
    assert "AAAA" not in str(raised.value)


def test_a_task_with_another_ring_than_the_driver_is_refused(tmp_path: Path) -> None:
    source = ring_in(tmp_path, json.dumps({"hash": {"primary": "h1", "keys": {"h1": KEY}}}))
    of_driver = KeySource(source.place, None, KeyId("h1", fingerprint(b"other key, of driver")))
    with pytest.raises(ConfigError, match="Give driver and executors the same keyring"):
        open_keyring(of_driver)
    hash_key = KeyId("h1", fingerprint(b"k" * 32))
    assert open_keyring(KeySource(source.place, None, hash_key)).hash_keys == {"h1": b"k" * 32}


def test_keys_are_shown_nowhere_and_sent_nowhere() -> None:
    ring = Keyring().with_new("hash").with_new("encrypt")
    assert repr(ring) == "Keyring(h1, k1)"
    with pytest.raises(TypeError, match="keys are not sent to other processes"):
        pickle.dumps(ring)
    shown = repr((ring.primary_of("hash"), ring.primary_of("encrypt")))
    assert not any(key.hex()[:8] in shown for key in (*ring.hash_keys.values(), *ring.encryption_keys.values()))
