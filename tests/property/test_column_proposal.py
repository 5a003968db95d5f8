"""Any JSON objects: what `headrace init` proposes for them is a declaration, and a table that can be."""

import json

import pyarrow as pa
import yaml
from hypothesis import given, strategies as st

from headrace.writer.avro.schema import parse
from headrace.writer.columns.resolution import Reader, resolve
from headrace.writer.json.declared import declared_record
from headrace.writer.preflight.proposal.column_proposal import (
    COLUMNS_MAX,
    declaration,
    declaration_lines,
    propose_columns,
)
from headrace.writer.preflight.proposal.member_statistics import (
    NumberText,
    ValueStatistics,
    collect_statistics,
    parse_object,
)
from tests.support.json_objects import NOW, OBJECTS, RESERVED, VALUES


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
