"""A real run protects fields, with a keyring that driver and tasks read."""

import hmac
from collections.abc import Callable
from pathlib import Path

import pytest

from tests import oracle
from tests.writing import Site
from writer.privacy.encryption import decrypted
from writer.privacy.keyring import Keyring, KeySource, Place, read_keyring, write_keyring

pytestmark = pytest.mark.slow
MakeTopic = Callable[..., str]


def test_fields_are_protected_before_they_are_written(site: Site, topic: MakeTopic) -> None:
    name, source = topic(2), KeySource(Place(str(site.root / "keys.json")))
    write_keyring(source, Keyring().with_new("hash").with_new("encrypt"))
    site.overrides["keys"] = {"file": source.place.file}
    clear = site.pipeline("clear", [name])
    lake = site.pipeline("events", [name], privacy={"fields": {"user_id": "hash", "url": "encrypt"}})
    site.fill(name, 200, broken=2)
    site.once()
    ring, place = read_keyring(source), "_topic, _partition, _offset"
    expected = {tuple(at): (user, url) for user, url, *at in oracle.rows(clear, f"user_id, url, {place}")}
    found = {tuple(at): (user, url) for user, url, *at in oracle.rows(lake, f"user_id, url, {place}")}
    assert found.keys() == expected.keys()
    assert len(found) > 100
    for at, (user, url) in found.items():
        was, page = expected[at]
        assert user == (was and hmac.digest(ring.hash_keys["h1"], str(was).encode(), "sha256").hex())
        assert (url and decrypted(str(url), ring.encryption_keys["k1"]).decode()) == page
    letters = oracle.rows(lake.with_name("events_dead_letters"), "value")
    assert letters
    assert all(bytes(value).startswith(b"hr1.k1.") for (value,) in letters)  # type: ignore[arg-type]
    secrets = [key.hex().encode() for key in (*ring.hash_keys.values(), *ring.encryption_keys.values())]
    for path in Path(site.root).rglob("*"):
        if path.is_file() and path.name != "keys.json":
            content = path.read_bytes()
            assert not any(bytes.fromhex(one.decode()) in content or one in content for one in secrets), path
