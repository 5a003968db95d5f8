"""A reprocess of a pipeline whose fields are hashed, encrypted, or decrypted on entry, from its encrypted raw table."""

from pathlib import Path
from typing import Any

import pytest

from headrace.writer.privacy.encryption import decrypt_text
from headrace.writer.privacy.keyring import read_keyring
from tests.servers.csfle import CsfleRegistry
from tests.support.encrypted_fields import EVENT, event, start_driver
from tests.support.field_encryption import Producer, rule
from tests.support.local_driver import Driver, log
from tests.support.private_table import hash_of, keyring_at
from tests.support.reprocess_lake import BERLIN, check_sound, rows, run_reprocess


def kept(root: Path, of: CsfleRegistry, keys: Path, **settings: Any) -> Driver:
    """Return a driver whose tables lie at `root` and whose keyring at `keys`."""
    table = {"location": str(root / "clicks"), "raw": {"location": str(root / "clicks_raw")}}
    return start_driver(keys, of, table=table, **settings)


@pytest.mark.parametrize("tags", [{"PII": "clear"}, {"PII": "hash"}, {"PII": "encrypt"}])
def test_fields_are_decrypted_and_protected_as_from_the_start(
    tmp_path: Path, registry: CsfleRegistry, tags: dict[str, str]
) -> None:
    registry.register("clicks-value", EVENT, ruleSet={"domainRules": [rule("PII")]})
    producer = Producer(registry)
    values: dict[int, bytes | None] = {offset: event(offset, producer.encrypt(f"maria{offset}")) for offset in range(6)}
    values |= {6: None, 7: event(7, "no ciphertext"), 8: b"\0\0\0\0\1cut"}

    def clear(email: str) -> str:
        is_encrypted = tags["PII"] == "encrypt"
        return (
            decrypt_text(email, read_keyring(keyring_at(tmp_path)).encryption_keys["k1"]).decode()
            if is_encrypted
            else email
        )

    texts = [f"maria{offset}" for offset in range(6)]
    wanted = [hash_of(tmp_path, text) for text in texts] if tags["PII"] == "hash" else texts

    before = kept(tmp_path / "old", registry, tmp_path, tags=tags)
    before.carry([log(values)], {0: 9})
    driver = kept(tmp_path / "old", registry, tmp_path, tags=tags, **BERLIN)
    oracle = kept(tmp_path / "new", registry, tmp_path, tags=tags, **BERLIN)
    oracle.carry([log(values)], {0: 9})
    assert {row["hour"] for row in rows(before)}.isdisjoint({row["hour"] for row in rows(oracle)})
    done = run_reprocess(driver)
    assert sum(bucket.moved for bucket in done.buckets) == 6
    for each in (driver, oracle):
        assert [clear(row["email"]) for row in rows(each)] == wanted
        check_sound(each)
    bare = [[{k: v for k, v in row.items() if k != "email"} for row in rows(each)] for each in (driver, oracle)]
    assert bare[0] == bare[1]
    assert len(bare[0]) == 6
    again = [bucket.version for bucket in run_reprocess(driver).buckets if bucket.version]
    assert bool(again) == (tags["PII"] == "encrypt"), "a second time changes nothing, but an encrypted value"
    check_sound(driver)
