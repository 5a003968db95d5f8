"""A pipeline whose producers encrypt a field."""

from datetime import timedelta
from pathlib import Path
from typing import Any

from headrace.writer.schemas.registry import ConfluentRegistry
from tests.servers.csfle import CsfleRegistry
from tests.support.local_driver import Driver
from tests.support.private_table import keyring_at
from tests.support.sample_records import NOW, TIME, value

CLEAR = {"PII": "clear", "CARD": "clear", "SECRET": "clear"}


EVENT: dict[str, Any] = {
    "type": "record",
    "name": "Event",
    "namespace": "shop",
    "fields": [
        {"name": "id", "type": "long"},
        {"name": "at", "type": TIME},
        {"name": "email", "type": ["null", "string"], "confluent:tags": ["PII"]},
    ],
}


def start_driver(
    root: Path, registry: CsfleRegistry, *, tags: Any = CLEAR, decrypt: Any = None, **settings: Any
) -> Driver:
    decrypt = {"shop-kek": {"env": "SHOP_SECRET"}} if decrypt is None else decrypt
    privacy = {"tags": tags, **({"decrypt": decrypt} if decrypt else {}), **settings.pop("privacy", {})}
    sections = {"keys": {"file": keyring_at(root).place.file}}
    driver = Driver(
        root,
        schemas=ConfluentRegistry(registry.url),
        privacy=privacy,
        sections=sections,  # type: ignore[arg-type]
        limits={"max_failed_ratio": 1},
        **settings,
    )
    driver.start()
    return driver


def event(number: int, email: str | None, schema_id: int = 1) -> bytes:
    return value(schema_id, EVENT, {"id": number, "at": NOW - timedelta(minutes=1), "email": email})


def emails(driver: Driver) -> dict[int, Any]:
    rows = driver.table.rows().to_table(columns=["id", "email"]).to_pylist()
    return {row["id"]: row["email"] for row in rows}


def dead_letter_rows(driver: Driver) -> list[dict[str, Any]]:
    rows: list[dict[str, Any]] = driver.side(driver.dead_letters).rows().to_table().sort_by("_offset").to_pylist()
    return rows
