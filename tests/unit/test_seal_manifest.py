"""Manifests: what is written is what is read, one object for each version of a bucket, put once."""

import json
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest
from hypothesis import given, strategies as st

from headrace.writer.sealing.manifest import Manifest, Manifests, ManifestUnreadable, manifest_path
from headrace.writer.storage.local import LocalStore

FIVE = datetime(2026, 11, 20, 5, tzinfo=UTC)
SEALED = Manifest(
    pipeline="clicks", table="/lake/clicks", columns=("hour", "country"), bucket=("2026-11-20T05", "DE"),
    start=FIVE, end=FIVE + timedelta(hours=1), version=1, rows=17, files=2, bytes=2_048, event_time_min=FIVE,
    event_time_max=FIVE + timedelta(minutes=59), late=0, deduped=0, added=17, reason="watermark", with_gap=False,
    sealed_at=FIVE + timedelta(hours=2), log_position=41, table_version=42,
)  # fmt: skip
INSTANTS = st.none() | st.datetimes(timezones=st.just(UTC))
VALUES = st.none() | st.text(max_size=8)


@given(
    st.lists(VALUES, min_size=1, max_size=3), INSTANTS, INSTANTS,
    st.integers(1, 99), st.integers(0, 2**53), st.integers(-5, 5), st.none() | st.integers(0, 99), st.booleans(),
)  # fmt: skip
def test_a_manifest_is_read_as_it_was_written(
    bucket: list[str | None], start: datetime | None, last: datetime | None, version: int, rows: int, added: int,
    table_version: int | None, gap: bool,
) -> None:  # fmt: skip
    written = replace(
        SEALED, columns=tuple(f"part{i}" for i in range(len(bucket))), bucket=tuple(bucket), start=start, end=start,
        version=version, rows=rows, added=added, event_time_max=last, table_version=table_version, with_gap=gap,
    )  # fmt: skip
    assert Manifest.from_json(json.loads(json.dumps(written.to_json()))) == written


def test_a_manifest_lies_in_the_folders_of_its_bucket() -> None:
    assert SEALED.path == "_headrace/sealed/hour=2026-11-20T05/country=DE/v1.json"
    assert SEALED.name == "hour=2026-11-20T05/country=DE"
    assert manifest_path(("page",), ("a/b",), 2) == "_headrace/sealed/page=a%2Fb/v2.json"


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"version": 0}, "numbered from 1, got 0"),
        ({"rows": -1}, "rows of hour=2026-11-20T05/country=DE must not be below zero"),
        ({"bucket": ("2026-11-20T05",)}, "other parts than its columns"),
        ({"end": datetime(2026, 11, 20)}, "has no zone"),  # noqa: DTZ001 - that is the fault
        ({"reason": "mood"}, "known are watermark, clock, command"),
    ],
)
def test_a_manifest_that_cannot_be_is_refused(changes: dict, words: str) -> None:
    with pytest.raises(ValueError, match=words):
        replace(SEALED, **changes)


def test_a_manifest_is_put_once_and_the_newest_is_found(tmp_path: Path) -> None:
    file_set = Manifests(LocalStore(str(tmp_path)), SEALED.columns)
    assert file_set.newest(SEALED.bucket) is None
    assert list(file_set.all()) == []
    assert file_set.put(SEALED)
    assert not file_set.put(replace(SEALED, rows=0))
    assert file_set.read(SEALED.bucket, 1) == SEALED
    later = [replace(SEALED, version=version, rows=version) for version in (2, 10)]
    other = replace(SEALED, bucket=("2026-11-20T05", None))
    for manifest in (*later, other):
        assert file_set.put(manifest)
    assert file_set.versions(SEALED.bucket) == [1, 2, 10]
    assert file_set.newest(SEALED.bucket) == later[-1]
    assert {m.bucket: m.version for m in file_set.all()} == {SEALED.bucket: 10, other.bucket: 1}


@pytest.mark.parametrize(
    ("content", "words"),
    [
        (b"{", "is not JSON"), (b"[]", "no object"), (b'{"format": 2}', "has the format 2, this headrace knows 1"),
        (b'{"format": 1}', "is not a manifest: KeyError"),
    ],
)  # fmt: skip
def test_a_file_that_is_no_manifest_is_named(tmp_path: Path, content: bytes, words: str) -> None:
    path = tmp_path / SEALED.path
    path.parent.mkdir(parents=True)
    path.write_bytes(content)
    with pytest.raises(ManifestUnreadable, match=words) as raised:
        Manifests(LocalStore(str(tmp_path)), SEALED.columns).newest(SEALED.bucket)
    assert str(path) in str(raised.value)


def test_a_newer_headrace_may_say_more() -> None:
    assert Manifest.from_json({**SEALED.to_json(), "weather": "fine"}) == SEALED


def test_a_manifest_says_where_it_stands_once_it_does() -> None:
    assert replace(SEALED, table_version=None).with_table_version(7).table_version == 7
