"""Any JSON objects: what `headrace init` proposes for them is a declaration, and a table that can be."""

import json
from datetime import UTC, datetime

import pyarrow as pa
import yaml
from hypothesis import given, strategies as st

from headrace.writer.avro.schema import parse
from headrace.writer.columns.resolution import Reader, resolve
from headrace.writer.columns.schema_plan import PROVENANCE
from headrace.writer.json.declared import declared_record
from headrace.writer.preflight.column_proposal import COLUMNS_MAX, declaration, declaration_lines, propose_columns
from headrace.writer.preflight.member_statistics import NumberText, ValueStatistics, collect_statistics, parse_object

NOW = datetime(2026, 11, 20, tzinfo=UTC)
RESERVED = frozenset([*PROVENANCE.names, "hour"])
NAMES = st.one_of(
    st.sampled_from(
        ["a", "A", "at", "created_at", "rest", "Rest", "rest_", "REST_", "*", "", "hour", "_offset", "null", "on", "<<",
         "=", "1", "x: y", "# x", "- x", "a.b", "é", "É", "İ", "x'y", 'x"y', "!x", "&x", "~"]
    ),
    st.text(max_size=6),
)  # fmt: skip
TEXTS = st.one_of(
    st.text(max_size=5), st.sampled_from(["2026-11-20", "2026-11-20T05:37:30Z", "2026-11-20 05:37", "9999-99-99"])
)
SCALARS = st.one_of(
    st.none(),
    st.booleans(),
    st.integers(),
    st.integers(1_700_000_000, 1_800_000_000),
    st.floats(allow_nan=False, allow_infinity=False),
    TEXTS,
)
VALUES = st.recursive(
    SCALARS, lambda inner: st.one_of(st.lists(inner, max_size=3), st.dictionaries(NAMES, inner, max_size=4))
)
OBJECTS = st.lists(st.dictionaries(NAMES, VALUES, max_size=6), max_size=12)


@given(OBJECTS)
def test_a_proposal_is_a_declaration_that_a_table_takes_and_its_yaml_says_the_same(objects):
    parsed = [members for value in objects if (members := parse_object(json.dumps(value).encode())) is not None]
    columns = propose_columns(collect_statistics(parsed), RESERVED, NOW)
    declared = declaration(columns)
    page = "\n".join(["declared:", *declaration_lines(columns, 2)])
    assert (yaml.safe_load(page)["declared"] or {}) == declared
    assert sum(column.columns for column in columns) <= COLUMNS_MAX
    if declared:
        for undeclared, misfit in (("rest", "null"), ("drop", "dead_letter")):
            record = parse(declared_record(declared, undeclared, misfit))
            resolved = resolve(record, pa.schema([]), Reader(), RESERVED, widen="any")
            assert set(declared) <= set(resolved.columns.names)


@given(st.lists(VALUES, max_size=6), st.lists(VALUES, max_size=6))
def test_statistics_that_are_merged_are_those_of_all_values(first, second):
    def statistics(values):
        collected = ValueStatistics()
        for value in values:
            collected.add(json.loads(json.dumps(value), parse_int=NumberText, parse_float=NumberText))
        return collected

    merged = statistics(first)
    merged.merge(statistics(second))
    assert merged == statistics([*first, *second])


@given(st.binary(max_size=30))
def test_bytes_are_an_object_or_nothing(value):
    members = parse_object(value)
    assert members is None or isinstance(members, dict)
