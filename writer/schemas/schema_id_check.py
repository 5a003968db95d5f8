"""Compares schemas with what their ids meant when rows were decoded. Every command that decodes uses it."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from datetime import datetime
from urllib.parse import urlsplit

from writer.avro.fingerprint import schema_fingerprint
from writer.avro.schema import UnsupportedSchema
from writer.avro.wire_format import Ids, show_id
from writer.config.connections import Registry
from writer.core.units import instant
from writer.schemas.registry import SchemaSource
from writer.table.log import schema_ids
from writer.table.log.schema_ids import Transactions

_PORTS = {"http": 80, "https": 443}


@dataclass(frozen=True)
class IdMeanings:
    """What the ids of a registry mean in the table of one pipeline. `recorded`: its newest `txn` values."""

    pipeline: str
    registry: Registry
    recorded: Callable[[], Transactions]

    def checked(self, schemas: SchemaSource, ids: Ids) -> SchemaSource:
        """Return the same schemas; they raise SchemaChanged where an id means another one than it did."""
        return schemas if ids == "fingerprint" else _Checked(schemas, self, ids)

    def of(self, texts: Mapping[int, str], ids: Ids) -> dict[str, int]:
        """Return what the ids of these schemas mean: name of the `txn` → fingerprint.

        An id that is itself a fingerprint means the same for ever.
        """
        if ids == "fingerprint":
            return {}
        return {self.name(i, ids): found for i, text in texts.items() if (found := meant(text)) is not None}

    def since(self, ids: Ids) -> dict[int, datetime]:
        """Return from when on ids have their meanings, where they had others before."""
        found, before = self.recorded(), self.prefix(ids)
        names = {i: schema_ids.since_name(self.name(i, ids)) for i in schema_ids.recorded_meanings(found, before)}
        return {i: instant(found[name]) for i, name in names.items() if name in found}

    def name(self, schema_id: int, ids: Ids) -> str:
        """Name of the `txn` of an id."""
        return f"{self.prefix(ids)}{show_id(schema_id)}"

    def prefix(self, ids: Ids) -> str:
        """Begin of the names of all ids of a kind."""
        return schema_ids.id_prefix(self.pipeline, place(self.registry, ids), ids)


@dataclass(frozen=True)
class _Checked:
    """A source of schemas that compares each id with its meaning in the table's log."""

    schemas: SchemaSource
    meanings: IdMeanings
    ids: Ids

    def schema(self, schema_id: int) -> str:
        """Return a schema's JSON text."""
        text = self.schemas.schema(schema_id)
        self._check({schema_id: text})
        return text

    def known(self, topic: str) -> Mapping[int, str]:
        """Schemas registered for a topic's values, by id."""
        found = self.schemas.known(topic)
        self._check(found)
        return found

    def _check(self, texts: Mapping[int, str]) -> None:
        recorded, names = self.meanings.recorded(), {self.meanings.name(i, self.ids): i for i in texts}
        changed = [name for name, i in names.items() if name in recorded and recorded[name] != meant(texts[i])]
        if changed:
            raise schema_ids.schema_changed_error(changed)


def meant(text: str) -> int | None:
    """Return a schema's fingerprint; None for what is no Avro, which no row was ever read by."""
    try:
        return schema_fingerprint(text)
    except UnsupportedSchema:
        return None


def place(registry: Registry, ids: Ids) -> str:
    """Name the registry that gives ids their meaning: its address, without scheme, login and what is usual.

    So one that is made anew at its address is the same; one at another address is another, whose ids are recorded anew.
    """
    if registry.address is None:
        return "files"
    url = registry.address if ids == "confluent" else registry.core_url or registry.address
    return ",".join(sorted(_address(one.strip()) for one in url.split(",")))


def _address(url: str) -> str:
    found = urlsplit(url)
    port = found.port
    named = f":{port}" if port and port != _PORTS.get(found.scheme) else ""
    return f"{found.hostname or ''}{named}{found.path.rstrip('/')}"
