"""Checks that settings name columns which values of a format without a schema have.

What JSON is declared to have, and that raw values have no members, the configuration itself says. Of values that name a
schema, it is not known before these are.
"""

from collections.abc import Iterable

import pyarrow as pa

from headrace.bucketers.arrow import column
from headrace.writer.avro import schema as avro
from headrace.writer.batch.bucketing import KAFKA_TIME, TimeRule, times_of_columns
from headrace.writer.formats.value_rules import ValueRules


def check_time_field(rules: ValueRules, record_columns: pa.Schema, rule: TimeRule) -> None:
    """Raise ValueError where the event time is no column, or no time."""
    columns = _columns_of(rules)
    if columns is None:
        return
    _check_fields(rules, record_columns, "event_time.field", [rule.field])
    try:
        times_of_columns(columns, rule, record_columns)
    except ValueError as error:
        raise ValueError(f"event_time: {error}") from error


def check_bucket_fields(rules: ValueRules, record_columns: pa.Schema, fields: Iterable[str]) -> None:
    """Raise ValueError where a bucket is made of what is no column."""
    _check_fields(rules, record_columns, "bucket.field", fields)


def check_member(rules: ValueRules, key: str, field: str) -> None:
    """Raise ValueError where a setting, of this key, names what is no member of a value."""
    _check_fields(rules, None, key, [field])


def check_tags(rules: ValueRules, names: Iterable[str]) -> None:
    """Raise ValueError where policies go by tags or attributes, which no schema can have."""
    if not rules.has_schemas and any(names):
        raise ValueError(
            "privacy.tags: only schemas of a registry have tags, and values of the format "
            f"{rules.formats[0]} name no schema; name the fields in privacy.fields"
        )


def check_rules_of_members(rules: ValueRules, record_columns: pa.Schema, *, specs: bool, paths: Iterable[str]) -> None:
    """Raise ValueError where raw values have event specs, or policies of members. `paths`: of policies."""
    if "raw" not in rules.formats:
        return
    if specs:
        raise ValueError(f"specs: {_no_members('none of them has a spec')}; take the specs out")
    value_columns = _columns_of(rules)
    assert value_columns is not None, "raw values have one column"
    columns = {*value_columns.names, *record_columns.names}
    wrong = next((path for path in paths if path not in columns), None)
    if wrong is not None:
        message = _no_members(f"there is no {wrong!r}")
        raise ValueError(f"privacy.fields: {message}; name one of {', '.join(sorted(columns))}")


def _check_fields(rules: ValueRules, record_columns: pa.Schema | None, key: str, fields: Iterable[str]) -> None:
    """Raise ValueError for a field that is none of the columns. `record_columns`: None where they do not count."""
    value_columns = _columns_of(rules)
    if value_columns is None:
        return
    beside = list[pa.Field]()
    if record_columns is not None:
        beside = [field for field in record_columns if field.name not in value_columns.names]
        beside.append(pa.field(KAFKA_TIME, pa.timestamp("us", "UTC")))
    rows = pa.schema([*value_columns, *beside]).empty_table()
    for field in fields:
        try:
            column(rows, field)
        except ValueError as error:
            if "raw" not in rules.formats:
                raise ValueError(f"{key}: {error}") from error
            message = _no_members(f"there is no {field!r}")
            fix = "name _kafka_time, or a column of columns.header_columns"
            if record_columns is None:
                fix = "go by a header, or by the topic"
            raise ValueError(f"{key}: {message}; {fix}") from error


def _no_members(consequence: str) -> str:
    return f"values of the format raw have no members, so {consequence}"


def _columns_of(rules: ValueRules) -> pa.Schema | None:
    """Return the columns of the values; None where their schemas say them."""
    if rules.has_schemas:
        return None
    text = rules.unnamed_schema
    assert text is not None, "values without a schema have a record schema of their own"
    return pa.schema(list(avro.table_fields(avro.parse(text)).items()))
