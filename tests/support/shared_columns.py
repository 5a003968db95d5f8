"""Columns that several schemas share, some of them protected."""

import json
import stat
from base64 import b64encode
from collections.abc import Iterator
from typing import Any

import pyarrow as pa
import pytest
from deltalake import Schema

from headrace.writer.batch.schema_reader import SchemaReader
from headrace.writer.columns.schema_plan import SchemaPlan, WriterSchema, conform
from headrace.writer.columns.union_members import COLUMN, union_members, with_members
from headrace.writer.framing.wire_format import CONFLUENT
from headrace.writer.privacy.keyring import KeyId, KeyringPlace, KeySource, fingerprint
from headrace.writer.privacy.path_policies import RecordPolicies, overlay_policies
from headrace.writer.privacy.policy import Action, Policies
from headrace.writer.privacy.protected_schema import Privacy
from headrace.writer.specs.spec import Spec
from headrace.writer.table.schema_evolution import merge_columns

KEY = b"k" * 32
SECOND = b"e" * 32


TAGS = {"PII": Action("hash"), "CARD": Action("mask", 2), "NOTE": Action("encrypt"), "GONE": Action("drop")}


Path = tuple[str, ...]


@pytest.fixture(scope="module")
def source(tmp_path_factory: pytest.TempPathFactory) -> KeySource:
    """The keyring of these tests."""
    path = tmp_path_factory.mktemp("keys") / "keys.json"
    path.write_text(
        json.dumps(
            {
                "hash": {"primary": "h1", "keys": {"h1": b64encode(KEY).decode()}},
                "encrypt": {"primary": "k1", "keys": {"k1": b64encode(SECOND).decode()}},
            }
        )
    )
    path.chmod(stat.S_IRUSR)
    ids = KeyId("h1", fingerprint(KEY)), KeyId("k1", fingerprint(SECOND))
    return KeySource(KeyringPlace(str(path)), None, *ids)


def number_bytes(number: int) -> bytes:
    """Return a number below 8,192 as Avro has it."""
    zigzag = number << 1
    return bytes([zigzag]) if zigzag < 128 else bytes([zigzag & 127 | 128, zigzag >> 7])


def text_bytes(text: str, texts: set[str]) -> bytes:
    texts.add(text)
    return number_bytes(len(text)) + text.encode()


def texts(value: Any, place: Path = ()) -> Iterator[tuple[Path, str]]:
    """Yield the texts in a value, each with the column that it stands in."""
    if isinstance(value, dict):
        for name, inside in value.items():
            yield from texts(inside, (*place, name))
    elif isinstance(value, list):
        for item in value:
            if isinstance(item, tuple):
                yield from texts(item[0], (*place, "key"))
                yield from texts(item[1], (*place, "value"))
            else:
                yield from texts(item, (*place, "element"))
    elif isinstance(value, str):
        yield place, value


class Table:
    """What a table and its log keep, and the writer that fills it."""

    def __init__(self, source: KeySource, policies: Policies, specs: tuple[Spec, ...]) -> None:
        self.source = source
        self.policies = policies
        self.specs = specs
        self.schema_text = Schema.from_arrow(pa.schema([pa.field(COLUMN, pa.string())])).to_json()
        self.recorded: RecordPolicies = {}
        self.plan = self.start({})

    def start(self, registered: dict[int, str]) -> SchemaPlan:
        columns = pa.schema(pa.schema(Schema.from_json(self.schema_text).to_arrow()))
        own = pa.schema([field for field in columns if field.name != COLUMN])
        privacy = Privacy(self.policies, self.source).with_log_policies(self.recorded)
        plan = SchemaPlan(own, frozenset([COLUMN]), privacy=privacy, specs=self.specs)
        self.plan = plan.with_union_members(union_members(columns)).learn_privacy(registered.values())
        for number, text in registered.items():
            self.plan = self.plan.extend(number, text)
        self.grow()
        return self.plan

    def meet(self, number: int, text: str) -> None:
        self.plan = self.plan.extend(number, text)
        self.grow()

    def grow(self) -> None:
        columns = pa.schema([*self.plan.columns, pa.field(COLUMN, pa.string())])
        self.schema_text, _ = merge_columns(self.schema_text, list(with_members(columns, self.plan.union_members)))
        assert self.plan.privacy is not None
        self.recorded = overlay_policies(self.recorded, self.plan.privacy.news)
        self.plan = self.plan.after_recording(self.recorded)

    def rows(self, number: int, values: list[bytes]) -> list[dict[str, Any]]:
        writer_schema = self.plan.schemas[number]
        assert isinstance(writer_schema, WriterSchema)
        rows = (
            SchemaReader(self.plan, CONFLUENT, "/tmp")
            .decode_block(pa.array(values, pa.binary()), number, writer_schema)
            .rows
        )
        if writer_schema.shaped:
            record = self.plan.shaped[writer_schema.shaped]
            rows = record.step.apply(conform(rows, writer_schema, record.input)).rows
            assert record.output is not None
            writer_schema = record.output
        documents: list[dict[str, Any]] = conform(rows, writer_schema, self.plan).to_pylist()
        return documents
