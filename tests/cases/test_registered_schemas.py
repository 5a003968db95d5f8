"""The schemas that are registered for several topics, where the registry goes away between two of them."""

import json
from collections.abc import Callable, Mapping

import pyarrow as pa
import pytest

from headrace.writer.batch.record_columns import RecordColumns
from headrace.writer.columns.schema_plan import ColumnRules
from headrace.writer.config.sections.registry import Registry
from headrace.writer.framing.wire_format import Wire
from headrace.writer.schemas.registry import RegistryUnreachable
from headrace.writer.schemas.schema_id_check import IdMeanings
from headrace.writer.schemas.tracker import Schemas


class Source:
    """A registry of the topics a and b, each with one schema, that does not answer for b while it is `away`."""

    away = True

    def schema(self, schema_id: int) -> str:
        field = {"name": "ab"[schema_id - 1], "type": "int"}
        return json.dumps({"type": "record", "name": f"R{schema_id}", "fields": [field]})

    def topic_schemas(self, topic: str) -> Mapping[int, str]:
        if self.away and topic == "b":
            raise RegistryUnreachable("it is away")
        schema_id = "ab".index(topic) + 1
        return {schema_id: self.schema(schema_id)}


def follow(schemas: Schemas) -> None:
    schemas.follow(pa.schema([]))


def use_wire(schemas: Schemas) -> None:
    schemas.use_wire(Wire("confluent"))


@pytest.mark.parametrize("ask", [follow, use_wire])
def test_topics_that_were_not_answered_for_are_asked_for_again(ask: Callable[[Schemas], None]) -> None:
    source = Source()
    schemas = Schemas(
        "p", source, IdMeanings("p", Registry.model_validate({"url": "http://r"}), dict), bucket_columns=(),
        record_columns=RecordColumns(), rules=ColumnRules(),
    )  # fmt: skip
    schemas.read_topics(["a", "b"])
    with pytest.raises(RegistryUnreachable):
        ask(schemas)
    source.away = False
    follow(schemas)
    assert set(schemas.plan.schemas) == {1, 2}
