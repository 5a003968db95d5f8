"""A subject with many versions: what a start admits of them, what that costs, and what the others are to a batch."""

import json
import pickle
from collections.abc import Mapping
from datetime import timedelta
from typing import Any

import pyarrow as pa
from hypothesis import given, strategies as st

from headrace.writer.batch.record_columns import RecordColumns
from headrace.writer.columns.schema_plan import ColumnRules, SchemaPlan, WriterSchema
from headrace.writer.config.sections.registry import Registry
from headrace.writer.schemas.schema_id_check import IdMeanings
from headrace.writer.schemas.start_schemas import NEWEST_COUNT, choose_start_schemas
from headrace.writer.schemas.tracker import Schemas


def record(fields: Mapping[str, Any], name: str = "R") -> str:
    members = [{"name": field, **about} for field, about in fields.items()]
    return json.dumps({"type": "record", "name": name, "fields": members})


def growing(count: int) -> dict[int, str]:
    """Return versions of which each adds a field."""
    versions = range(1, count + 1)
    return {
        number: record({f"f{at}": {"type": "int", "default": at} for at in range(number)}) for number in versions
    }  # fmt: skip


class Source:
    """A registry that counts how often it is asked."""

    def __init__(self, texts: Mapping[int, str]) -> None:
        self.texts = texts
        self.listings = 0

    def schema(self, schema_id: int) -> str:
        return self.texts[schema_id]

    def topic_schemas(self, topic: str) -> dict[int, str]:  # noqa: ARG002 - one topic
        self.listings += 1
        return dict(self.texts)


def started(source: Source) -> Schemas:
    schemas = Schemas(
        "p", source, IdMeanings("p", Registry.model_validate({"url": "http://r"}), dict), bucket_columns=(),
        record_columns=RecordColumns(), rules=ColumnRules(), unknown_id_timeout=timedelta(0),
    )  # fmt: skip
    schemas.begin(["t"])
    schemas.follow(pa.schema([]))
    return schemas


def test_the_plan_of_a_start_grows_no_faster_than_one_version_does() -> None:
    sizes: dict[int, float] = {}
    for count in (40, 160):
        plan = started(Source(growing(count))).plan
        assert len(plan.columns) == count
        assert len(plan.schemas) == NEWEST_COUNT
        sizes[count] = len(pickle.dumps(plan)) / count
    assert sizes[160] < 2 * sizes[40], "bytes for each version; with all versions they grow fourfold"


def test_a_start_lists_the_versions_once() -> None:
    source = Source(growing(3))
    started(source)
    assert source.listings == 1


def test_an_older_version_is_admitted_once_a_record_names_it_and_decides_over_no_default() -> None:
    texts = growing(NEWEST_COUNT + 10)
    texts[2] = record({"f0": {"type": "int", "default": 7}, "f1": {"type": "long"}})
    schemas = started(Source(texts))
    assert 2 not in schemas.plan.schemas
    before = schemas.plan.reader.defaults
    schemas.learn([2])
    assert isinstance(schemas.plan.schemas[2], WriterSchema)
    assert schemas.plan.columns.field("f1").type == pa.int64(), "a column is widened all the same"
    assert schemas.plan.reader.defaults["f0",][0].as_py() == 0
    assert schemas.plan.reader.defaults.keys() == before.keys()


def test_a_schema_that_comes_later_decides_over_defaults_whatever_a_start_has_seen() -> None:
    source = Source(growing(NEWEST_COUNT + 10))
    schemas = started(source)
    source.texts = {**source.texts, 99: record({"f0": {"type": "int", "default": 7}})}
    schemas.learn([99])
    assert schemas.plan.reader.defaults["f0",][0].as_py() == 7


NAMES = st.sampled_from([f"n{number}" for number in range(12)])


@given(st.lists(st.sets(NAMES, min_size=1, max_size=4), min_size=1, max_size=60), st.integers(1, 2))
def test_the_columns_of_a_start_are_those_of_all_versions(drawn: list[set[str]], records: int) -> None:
    texts = [
        (at, record({name: {"type": "int"} for name in sorted(names)}, f"R{at % records}"))
        for at, names in enumerate(drawn)
    ]
    chosen = choose_start_schemas(texts)
    assert {at for at, _ in texts[-NEWEST_COUNT:]} <= chosen
    assert len(chosen) <= records * (NEWEST_COUNT + 12)
    everything = SchemaPlan(pa.schema([]))
    some = SchemaPlan(pa.schema([]))
    for at, text in texts:
        everything = everything.extend(at, text)
        some = some.extend(at, text) if at in chosen else some
    assert set(some.columns.names) == set(everything.columns.names)


def test_a_start_bounds_the_texts_that_are_no_record_schema() -> None:
    texts = [(number, text) for number, text in enumerate(['"string"', "no schema", "[]", "{", '{"fields": 3}'] * 20)]
    assert len(choose_start_schemas(texts)) == NEWEST_COUNT
