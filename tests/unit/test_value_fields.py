"""Settings name columns that values without a schema have, or the configuration says which there are."""

from pathlib import Path
from typing import Any

import pytest

from tests.support.sample_records import config

DECLARED = {"id": "long", "at": "timestamp", "user": {"seen": "timestamp(ms)", "name": "string"}, "tags": ["string"]}
JSON: dict[str, Any] = {"formats": "json", "columns": {"declared": DECLARED}}
RAW: dict[str, Any] = {"formats": "raw", "event_time": {"field": "_kafka_time"}}
FIELD = {"type": "field", "column": "land"}


@pytest.mark.parametrize(
    "settings",
    [
        {**JSON, "event_time": {"field": "user.seen"}},
        {**JSON, "event_time": {"field": "_kafka_time"}},
        {**JSON, "bucket": {**FIELD, "field": "user.name"}},
        # A spec may make the column.
        {**JSON, "bucket": {**FIELD, "field": "land"}, "specs": {"declared": {"derive": {"land": "user.name"}}}},
        {**JSON, "route": {"by": {"field": "user.name"}, "targets": {"*": "/lake/{name}"}}},
        {**JSON, "formats": ["avro", "json"], "event_time": {"field": "of a schema"}},
        {**RAW, "bucket": {**FIELD, "field": "land"}, "columns": {"header_columns": {"land": "country"}}},
        {"event_time": {"field": "of a schema"}},
    ],
)
def test_columns_that_there_are_or_may_be_are_taken(tmp_path: Path, settings: dict[str, Any]) -> None:
    assert config(tmp_path, **settings).pipelines["clicks"].event_time.field


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"event_time": {"field": "att"}}, "event_time.field: field 'att' is not in the record; did you mean 'at'?"),
        ({"event_time": {"field": "tags"}}, "event_time: field 'tags'"),
        ({"bucket": {**FIELD, "field": "usr.name"}}, "bucket.field: field 'usr.name' is not in the record"),
        (
            {"route": {"by": {"field": "_kafka_time"}, "targets": {"*": "/lake/{name}"}}},
            "route.by.field: field '_kafka_time' is not in the record",
        ),
        (
            {"route": {"targets": {"declared": {"location": "/lake/a", "event_time": {"field": "when"}}}}},
            "route.targets.declared: event_time.field: field 'when' is not in the record",
        ),
        (
            {"privacy": {"attributes": ["pii"]}, "sections": {"keys": {"env": "KEYS"}}},
            "privacy.tags: only schemas of a registry have tags, and values of the format json name no schema",
        ),
    ],
)
def test_what_no_declared_column_is_called_is_a_sentence(
    tmp_path: Path, settings: dict[str, Any], message: str
) -> None:
    with pytest.raises(ValueError, match="clicks") as refusal:
        config(tmp_path, **JSON, **settings)
    assert message in str(refusal.value)


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"event_time": {"field": "at"}}, "event_time.field: values of the format raw have no members, so there is no"),
        ({"bucket": {**FIELD, "field": "land"}}, "bucket.field: values of the format raw have no members"),
        ({"specs": {"*": {"where": "true"}}}, "specs: values of the format raw have no members, so none of them has a"),
        (
            {"privacy": {"fields": {"user.name": "hash"}}, "sections": {"keys": {"env": "KEYS"}}},
            "there is no 'user.name'; name one of _headers, _key, value",
        ),
        (
            {"route": {"by": {"field": "kind"}, "targets": {"*": "/lake/{name}"}}},
            "route.by.field: values of the format raw have no members, so there is no 'kind'; go by a header",
        ),
    ],
)
def test_what_would_be_a_member_of_raw_values_is_a_sentence(
    tmp_path: Path, settings: dict[str, Any], message: str
) -> None:
    with pytest.raises(ValueError, match="clicks") as refusal:
        config(tmp_path, **{**RAW, **settings})
    assert message in str(refusal.value)
