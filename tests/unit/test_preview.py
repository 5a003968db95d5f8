"""What a look at a topic shows: as the steps of the writer see it, and readable."""

import json
from collections import Counter
from datetime import UTC, datetime, timedelta
from os import urandom

import pyarrow as pa
import pytest
from hypothesis import given, strategies as st
from rich.console import Console
from rich.text import Text

from headrace.writer.clients import kafka_sample
from headrace.writer.config.sections.table import layout
from headrace.writer.core.errors import ConfigError
from headrace.writer.maintenance import local_pipeline
from headrace.writer.output import tables
from headrace.writer.output.report import Screen
from headrace.writer.output.tables import Column, TextTable, plain
from headrace.writer.preflight.samples import preview, staged_sample
from headrace.writer.preflight.samples.preview_text import PreviewedRecords, open_sheet
from tests.support.sample_records import EVENT, NOW, WIDER, Schemas, config, event, records, value
from tests.support.table_formats import delta_table

UNKNOWN = 77
MIXED = [
    event(0), event(1), None, b'{"id": 5}', event(2)[:-1], event(3, event_time=NOW - timedelta(days=60)),
    value(2, WIDER, {"id": 4, "at": NOW, "note": None, "extra": 9}), event(5, schema_id=UNKNOWN), event(6) + b"??",
]  # fmt: skip
OUTCOMES = [
    "row", "row", "tombstone", "dead_letter", "dead_letter", "quarantined", "row", "dead_letter", "dead_letter",
]  # fmt: skip


@pytest.fixture
def ready(tmp_path):
    return local_pipeline.open_local_pipeline("clicks", config(tmp_path), Schemas({1: EVENT, 2: WIDER}, [1]))


def screen(*, as_json: bool) -> Screen:
    return Screen(as_json=as_json, has_lines=True)


def show_step(shown, step, ready, *, as_json: bool) -> None:
    page = screen(as_json=as_json)
    page.show(PreviewedRecords(shown, None, step, ready, open_sheet(step, page.out), has_summary=True))


def wide(width: int) -> Console:
    return Console(width=width, force_terminal=False, highlight=False)


def test_each_record_has_its_outcome_in_the_order_of_the_offsets(ready):
    found = preview.describe_buckets(ready, records(MIXED), NOW)
    assert [record["outcome"] for record in found] == OUTCOMES
    assert [record["offset"] for record in found] == list(range(len(MIXED)))


def test_a_look_and_a_task_agree_on_every_record(ready, tmp_path):
    batch = records(MIXED * 20, partitions=3)
    seen = Counter(record["outcome"] for record in preview.describe_buckets(ready, batch, NOW))
    report = ready.stage(batch, NOW, tmp_path)
    counts = Counter[str]()
    for source in report.counts.values():
        counts.update(source.outcomes())
    assert (seen["row"], seen["dead_letter"], seen["quarantined"], seen["tombstone"]) == (
        counts["rows"], counts["dead_letters"], counts["quarantined"], counts["tombstones"],
    )  # fmt: skip
    assert counts["read"] == len(MIXED) * 20


def test_raw_shows_header_and_size_and_knows_a_tombstone():
    found = preview.describe_bytes(records(MIXED))
    assert [record["schema_id"] for record in found] == [1, 1, None, None, 1, 1, 2, UNKNOWN, 1]
    assert [record["bytes"] for record in found] == [len(v or b"") for v in MIXED]
    assert plain(found[0])["value_hex"] == event(0).hex()


def test_a_narrow_terminal_keeps_room_for_the_value(tmp_path, capsys, monkeypatch):
    monkeypatch.setenv("COLUMNS", "80")
    look = preview.PreviewSession("clicks", config(tmp_path), "raw", screen(as_json=False), NOW, is_finite=True)
    look.show([records([b'{"a": 1}'])])
    assert capsys.readouterr().out.rstrip().endswith('{"a": 1}')


def test_bytes_are_shown_as_the_text_that_they_are_or_as_hex(tmp_path, capsys, monkeypatch):
    for content, shown in (
        (b"k1", "k1"), ("Zo\u00eb".encode(), "Zo\u00eb"), (b"a\nb", r"a\nb"), (b"\x00\x01ab", "0x00016162"),
        (b"\xff\xfe", "0xfffe"), (b"", ""),
    ):  # fmt: skip
        assert tables.legible(content) == shown
    monkeypatch.setenv("COLUMNS", "80")
    look = preview.PreviewSession("clicks", config(tmp_path), "raw", screen(as_json=False), NOW, is_finite=True)
    look.show([records([b"\x00\x00\x00\x00\x01\x02ab\x08"])])
    assert capsys.readouterr().out.rstrip().endswith("0x02616208")


def test_rows_have_the_values_that_were_written(ready):
    found = preview.describe_rows(ready, records(MIXED))
    assert found[0]["row"] == {"id": 0, "at": NOW, "note": "note 0", "extra": None}
    assert found[6]["row"] == {"id": 4, "at": NOW, "note": None, "extra": 9}


def test_an_assigned_record_has_event_time_unit_and_bucket(ready):
    first = preview.describe_buckets(ready, records([event(30)]), NOW)[0]
    assert (first["event_time"], first["unit"]) == (NOW - timedelta(minutes=30), "logical")
    assert first["bucket"] == {"hour": "2026-11-20T11"}


def test_a_person_sees_a_bucket_by_its_folder(ready, capsys):
    batch = records([event(30)])
    show_step(preview.describe_buckets(ready, batch, NOW), "assigned", ready, as_json=False)
    assert "hour=2026-11-20T11" in capsys.readouterr().out
    screen(as_json=False).show(staged_sample.stage_sample(ready, batch, NOW))
    assert "hour=2026-11-20T11" in capsys.readouterr().out


def test_a_dead_letter_has_the_sentence_that_the_table_would_hold(ready):
    reasons = [record.get("reason", "") for record in preview.describe_buckets(ready, records(MIXED), NOW)]
    assert reasons[3] == "no Confluent header (magic byte 0 and a 4-byte schema id)"
    assert reasons[4] == "the value ends before the record does"
    assert reasons[5].startswith("at is 2026-09-21 12:00:00")
    assert reasons[7] == "schema id 77 is unknown to the registry"
    assert reasons[8] == "2 surplus bytes after the record"


def test_a_schema_outside_the_subject_is_learnt_and_its_column_is_there_for_all(ready):
    assert ready.plan.columns.names == ["id", "at", "note"]
    preview.describe_rows(ready, records(MIXED))
    assert ready.plan.columns.names == ["id", "at", "note", "extra"]


def test_an_existing_table_decides_the_columns_and_must_be_ours(tmp_path):
    settings = config(tmp_path)
    pipeline = settings.pipelines["clicks"]
    columns = pa.schema([("id", pa.int64()), ("old", pa.string()), ("hour", pa.string())])
    delta_table(pipeline.table.location, "clicks").create(columns, ["hour"], layout(pipeline.bucket))
    assert local_pipeline.open_local_pipeline("clicks", settings, Schemas({1: EVENT}, [1])).plan.columns.names == [
        "id",
        "old",
        "at",
        "note",
    ]
    other = config(tmp_path, bucket={"type": "event_time", "width": "1 d"})
    with pytest.raises(ConfigError, match="keep 'bucket' as it was"):
        local_pipeline.open_local_pipeline("clicks", other, Schemas({1: EVENT}, [1]))


def test_a_field_that_is_no_time_is_a_sentence(tmp_path):
    looked = local_pipeline.open_local_pipeline(
        "clicks", config(tmp_path, event_time={"field": "nope"}), Schemas({1: EVENT}, [1])
    )
    said = r"pipelines\.clicks\.event_time: .*nope"
    with pytest.raises(ConfigError, match=said):
        preview.describe_buckets(looked, records(MIXED), NOW)
    with pytest.raises(ConfigError, match=said):
        looked.stage(records(MIXED), NOW, tmp_path)


def test_staged_files_are_measured_and_gone(ready, tmp_path, monkeypatch):
    monkeypatch.setenv("TMPDIR", str(tmp_path))
    monkeypatch.setattr("tempfile.tempdir", None)
    found = staged_sample.stage_sample(ready, records([event(n) for n in range(500)]), NOW)
    assert found.rows == 500
    assert found.bytes == sum(file.bytes for file in found.report.files) > 0
    assert {column.path for column in found.columns} >= {"id", "at", "note", "_offset", "_topic"}
    assert all(column.compression == "ZSTD" and column.bytes > 0 for column in found.columns)
    assert sum(column.nulls for column in found.columns if column.path == "note") == sum(n % 3 > 0 for n in range(500))
    assert not list(tmp_path.glob("headrace-staged-*"))


def test_the_bytes_of_a_record_in_the_raw_table_are_measured(ready, tmp_path, monkeypatch):
    monkeypatch.setenv("TMPDIR", str(tmp_path))
    monkeypatch.setattr("tempfile.tempdir", None)
    few, large = ([event(n), None, b"", b"\0" + bytes(range(256)) * size] for n, size in ((1, 1), (2, 200)))
    assert staged_sample.raw_record_bytes(ready, records(few), NOW) > 0
    noise = [urandom(5_000) for _ in range(50)]  # no record of it becomes a row
    assert staged_sample.raw_record_bytes(ready, records(noise), NOW) > 5_000
    assert staged_sample.raw_record_bytes(ready, records(large), NOW) < 52_000, "it is compressed"
    assert not list(tmp_path.glob("headrace-staged-*"))


def test_staged_as_json_is_one_object_a_file_dead_letters_included(ready, capsys):
    screen(as_json=True).show(staged_sample.stage_sample(ready, records(MIXED * 9), NOW))
    documents = [json.loads(line) for line in capsys.readouterr().out.splitlines()]
    assert {document["table"] for document in documents} == {"table", "dead_letters"}
    assert sum(document["rows"] for document in documents) == 9 * 8
    assert all(document["columns"] for document in documents)


@pytest.mark.parametrize("at", ["raw", "decoded", "assigned"])
@pytest.mark.parametrize("width", [60, 100, 200])
def test_no_line_is_wider_than_the_terminal(ready, capsys, monkeypatch, at, width):
    monkeypatch.setenv("COLUMNS", str(width))
    show_step(through(ready, at), at, None if at == "raw" else ready, as_json=False)
    shown = capsys.readouterr().out.splitlines()
    assert len(shown) > len(MIXED) // 2
    assert max(len(line) for line in shown[:-1]) <= width  # the last is a sentence, which a terminal wraps


def through(ready, at):
    batch = records(MIXED)
    if at == "raw":
        return preview.describe_bytes(batch)
    if at == "decoded":
        return preview.describe_rows(ready, batch)
    return preview.describe_buckets(ready, batch, NOW)


@pytest.mark.parametrize("at", ["raw", "decoded", "assigned"])
def test_json_is_one_object_a_record(ready, capsys, at):
    show_step(through(ready, at), at, None if at == "raw" else ready, as_json=True)
    documents = [json.loads(line) for line in capsys.readouterr().out.splitlines()]
    assert [document["offset"] for document in documents] == list(range(len(MIXED)))
    assert documents[0]["timestamp"] == "2026-11-20T12:00:00Z"


def test_a_value_that_json_cannot_hold_becomes_text():
    odd = {"a": float("nan"), "b": b"\x00\xff", "c": datetime(2026, 1, 2, tzinfo=UTC), "d": [float("inf"), {"e": None}]}
    assert plain(odd) == {
        "a": "nan",
        "b": "00ff",
        "c": "2026-01-02T00:00:00Z",
        "d": ["inf", {"e": None}],
    }


def test_a_sheet_keeps_its_widths_while_it_streams(capsys):
    sheet = TextTable(wide(30), [Column("name", width_max=6), Column("n", right=True, width_min=4), Column("rest")])
    sheet.add([["abc", "1", "x"]])
    sheet.add([["abcdefghij", "22", "a text that is far too long for this"], ["b", Text("wide", "red")]])
    assert capsys.readouterr().out.splitlines() == [
        "name     n  rest", "abc      1  x", "abc…    22  a text that is fa…", "b     wide",
    ]  # fmt: skip


@pytest.mark.parametrize(
    ("text", "found"),
    [
        ("earliest", "earliest"), ("latest", "latest"),
        ("2026-11-20T05:00:00Z", datetime(2026, 11, 20, 5, tzinfo=UTC)),
        ("2026-11-20T05:00:00+01:00", datetime(2026, 11, 20, 4, tzinfo=UTC)),
    ],
)  # fmt: skip
def test_a_position_is_a_word_or_an_instant(text, found):
    assert kafka_sample.position(text) == found


@pytest.mark.parametrize("text", ["yesterday", "0001-01-01T00:00+14:00"])
def test_another_position_is_refused_with_the_mend(text):
    with pytest.raises(ConfigError, match="write earliest, latest or a time"):
        kafka_sample.position(text)


@given(st.dictionaries(st.tuples(st.just("t"), st.integers(0, 50)), st.integers(0, 1000)), st.integers(0, 5000))
def test_a_sample_is_shared_out_evenly_and_in_full(held, count):
    shares = kafka_sample.spread(held, count)
    assert sum(shares.values()) == min(count, sum(held.values()))
    assert all(shares[source] <= held[source] for source in held)
    short = [shares[source] for source in held if shares[source] < held[source]]
    assert not short or max(shares.values()) - min(short) <= 1


def test_one_of_several_pipelines_must_be_named(tmp_path):
    settings = config(tmp_path)
    two = settings.model_copy(update={"pipelines": {"clicks": 1, "installs": 2}})
    assert settings.one(None) == "clicks"
    assert two.one("installs") == "installs"
    with pytest.raises(ConfigError, match=r"--pipeline clicks or installs"):
        two.one(None)
    with pytest.raises(ConfigError, match="did you mean 'clicks'"):
        two.one("click")


def test_following_files_is_refused_before_anything_is_asked(tmp_path):
    with pytest.raises(ConfigError, match="--at staged"):
        preview.preview_topics(
            config(tmp_path),
            preview.PreviewRequest(None, None, "staged"),
            preview.TopicSelection(1, "latest", follows=True),
            screen=screen(as_json=False),
            now=NOW,
        )
