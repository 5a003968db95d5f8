"""A table whose fields are hashed, encrypted, masked or dropped."""

import hmac
import json
from datetime import timedelta
from pathlib import Path
from typing import Any

from headrace.writer.config.pipelines import Config
from headrace.writer.privacy.keyring import Keyring, KeyringPlace, KeySource, read_keyring, write_keyring
from tests.support.local_driver import Driver
from tests.support.sample_records import EVENT, NOW, Schemas, value

TAGGED = {
    **EVENT,
    "fields": [
        {**EVENT["fields"][0], "confluent:tags": ["PII"]},
        EVENT["fields"][1],
        {**EVENT["fields"][2], "pii": "secret"},
    ],
}


PRIVACY = {"tags": {"PII": "hash", "secret": "encrypt"}, "attributes": ["pii"]}


def keyring_at(root: Path) -> KeySource:
    """Return the keyring of a test, made at its first use."""
    source = KeySource(KeyringPlace(str(root / "keys.json")))
    if not (root / "keys.json").exists():
        root.mkdir(parents=True, exist_ok=True)
        write_keyring(source, Keyring().with_new("hash").with_new("encrypt"))
    return source


def start_driver(
    root: Path, schemas: Any = None, privacy: Any = PRIVACY, *, sections: Any = None, **settings: Any
) -> Driver:
    source = keyring_at(root)
    sections = {"keys": {"file": source.place.file}, **(sections or {})}
    registered = schemas or Schemas({1: TAGGED}, [1])
    driver = Driver(root, schemas=registered, privacy=privacy, sections=sections, **settings)
    driver.start()
    return driver


def event(number: int, schema: Any = TAGGED, schema_id: int = 1, **more: Any) -> bytes:
    row = {"id": number, "at": NOW - timedelta(minutes=1), "note": f"note {number}", **more}
    return value(schema_id, schema, row)


def hash_of(root: Path, text: object) -> str:
    keyring = read_keyring(keyring_at(root))
    return hmac.digest(keyring.hash_keys[keyring.primary["hash"]], str(text).encode(), "sha256").hex()


def ids_of(driver: Driver) -> set[Any]:
    return set(driver.table.rows().to_table(columns=["id"])["id"].to_pylist())


def write_config_file(config: Config, root: Path) -> str:
    file = root / "pipelines.yaml"
    file.write_text(json.dumps(config.model_dump(mode="json", exclude_unset=True)))
    return str(file)
