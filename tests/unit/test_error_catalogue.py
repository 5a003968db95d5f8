"""What an error means for a checkpoint. The texts are those of real runs, cut to what tells."""

import json
from pathlib import Path

import pytest

from headrace.recovery.escalation.error_catalogue import UNKNOWN, catalogue, catalogue_for, classify
from headrace.recovery.escalation.levels import RecoveryLevel
from headrace.writer.clients.java_artifacts import SPARK_RELEASES

QUERY = (
    "[STREAM_FAILED] Query [id = a76f7e84-306b-4262-ab49-81df29c41119, runId = 84680364] terminated with exception: "
)
START = "Py4JJavaError: An error occurred while calling o1145.start.\n: com.fasterxml.jackson."
TRACE = "\n\tat org.apache.spark.sql.execution.streaming.StreamMetadata$.read(StreamMetadata.scala:59)"
AGAIN = "`headrace run --new-run --yes` begins a new checkpoint from the table's frontier; nothing is lost or doubled."
TEXTS = [
    ("1", "Failed to read log file file:/c/events/000001/offsets/5. Incomplete log file"),
    ("2", "next on empty iterator\nUnknownException: java.util.NoSuchElementException: next on empty iterator"),
    ("3", "Unexpected end-of-input\nUnknownException: com.fasterxml.jackson.core.io.JsonEOFException: Unexpected"),
    ("4", "assertion failed: There are [0] sources in the checkpoint offsets and now there are [1] sources requested"),
    ("5", 'IllegalArgumentException: Expected e.g. {"topicA":{"0":23,"1":-1},"topicB":{"0":-2}}, got {"t1":{"0":1'),
    ("6", "[INVALID_LOG_VERSION.MAX_SUPPORTED_VERSION] UnsupportedLogVersion. The maximum supported log version is v1"),
    ("6b", "Input length = 1\nUnknownException: java.nio.charset.MalformedInputException: Input length = 1"),
    ("7", "batch 4 doesn't exist\nUnknownException: java.lang.IllegalStateException: batch 4 doesn't exist"),
    ("9", "[CONCURRENT_STREAM_LOG_UPDATE] Concurrent update to the log. Multiple streaming jobs detected for 4."),
    ("12", "Failed to read log file file:/c/commits/5. Incomplete log file in the offset commit log"),
    ("16", START + "databind.exc.MismatchedInputException: No content to map due to end-of-input" + TRACE),
    ("16", START + "core.io.JsonEOFException: Unexpected end-of-input: was expecting closing quote" + TRACE),
    ("20", ("Multiple streaming queries are concurrently using file:/c/offsets.\nUnknownException: "
           "org.apache.hadoop.fs.FileAlreadyExistsException: Rename destination file:/c/offsets/.6.crc")),
    ("35", "There are [1] sources in the checkpoint offsets and now there are [2] sources requested by the query."),
]  # fmt: skip
OURS = [
    ("1", f"CheckpointUnusable: checkpoint /c/000001: offsets/5 cannot be read (it ends too early). {AGAIN}"),
    ("6", f"CheckpointUnusable: checkpoint /c/000001: offsets/5 has version 'v9', only v1 is known. {AGAIN}"),
    ("7", f"CheckpointUnusable: checkpoint /c/000001: offsets/5 cannot be read (there is none). {AGAIN}"),
    ("10", f"CheckpointUnusable: checkpoint /c/000001: offsets/ is empty, but commits/ is not. {AGAIN}"),
    ("14", (f"CheckpointUnusable: checkpoint /c/000001: offsets end at batch 5, commits at 2: batches between are in "
           f"doubt. {AGAIN}")),
    ("18", ("CheckpointUnusable: run 1 would continue t1/0 at offset 127, but the table ends at 120: 7 offsets would "
           f"be skipped. {AGAIN}")),
    ("25", "CommitFailed: the storage gave no answer"),
    ("26", "BrokerUnreachable: no Kafka broker answers at b:9092 within 10 s"),
    ("30", "TopicMissing: topic 'clicks' does not exist on b:9092"),
    ("34", "LogChanged: Kafka's log is shorter than what the table has of it: clicks/0 ends at 5, the table at 9."),
    ("fenced", ("Fenced: pipeline 'events' was started again: another writer runs. (CheckpointUnusable: offsets/5 "
               "cannot be read)")),
    ("limit", "LimitReached: 900 of 1,000 records are poison"),
    ("configuration", "ConfigError: topic 'x'"),
    ("registry", "RegistryUnreachable: no registry answers"),
    ("schema", "SchemaChanged: schema id 1 at registry:8081 is another schema than the one by which"),
]  # fmt: skip


@pytest.mark.parametrize(("row", "text"), TEXTS)
def test_the_words_of_spark_lead_to_the_row(row, text):
    assert classify(f"StreamingQueryException: {QUERY}{text}").row == row


@pytest.mark.parametrize(("row", "text"), OURS)
def test_the_words_of_headrace_lead_to_the_row(row, text):
    assert classify(text).row == row


@pytest.mark.parametrize(
    "text", ["", "ValueError: something new", "Py4JJavaError: An error occurred\n: java.lang.Error"]
)
def test_an_unknown_error_begins_with_a_restart(text):
    assert classify(text) == UNKNOWN
    assert UNKNOWN.level is RecoveryLevel.RESTART


def test_a_passing_error_is_waited_for_and_one_for_a_person_is_not_tried_again():
    assert classify("BrokerUnreachable: no Kafka broker answers").level is RecoveryLevel.WAIT
    verdict = classify("Fenced: another writer runs")
    assert verdict.halt
    assert verdict.level is None


def test_each_row_says_what_is_done_and_is_tried_or_says_why_not():
    rows = catalogue()
    assert len({row.row for row in rows}) == len(rows)
    root = Path(__file__).parents[1]
    for row in rows:
        assert not (row.halt and row.level is not None), row.row
        assert row.message.endswith("."), row.row
        assert all((root / name).exists() for name in row.elsewhere), row.row


def test_each_version_of_spark_has_the_words_of_the_newest_row_that_is_not_newer():
    raw = json.loads((Path(__file__).parents[2] / "recovery" / "escalation" / "damages.json").read_text())
    minors = list(SPARK_RELEASES)
    for number, minor in enumerate(minors):
        for row, damage in zip(raw["damages"], catalogue_for(minor), strict=True):
            words = [row["symptom"][older] for older in minors[: number + 1] if older in row["symptom"]]
            pattern = None if damage.symptom is None else damage.symptom.pattern
            assert pattern == (words[-1] if words else None), (minor, row["row"])


def test_words_that_only_a_later_spark_has_are_of_that_spark():
    text = "SparkException: [STREAMING_CHECKPOINT_MISSING_METADATA_FILE] Checkpoint location s3a://c is inconsistent"
    assert classify(text, catalogue_for("4.2")).row == "15"
    assert classify(text, catalogue_for("4.1")) == UNKNOWN
    text = "IllegalArgumentException: requirement failed: Previous batch 5 not found in offset log"
    assert classify(text, catalogue_for("4.2")).row == "7"


def test_the_catalogue_is_read_as_it_was_written():
    raw = json.loads((Path(__file__).parents[2] / "recovery" / "escalation" / "damages.json").read_text())
    assert [row["row"] for row in raw["damages"]] == [row.row for row in catalogue()]


LOSS = (
    "KafkaIllegalStateException: Some data may have been lost because they are not available in Kafka any more;\n"
    "either the data was aged out by Kafka or the topic may have been deleted before all the data in the\n"
    "topic was processed.\nReason: "
)


@pytest.mark.parametrize(
    ("row", "reason"),
    [
        (
            "27",
            "Could not read records in offset [44, 52) for topic partition t1-1\nCaused by: OffsetOutOfRangeException",
        ),
        ("28", "Partition t1-1 offset was changed from 44 to 8."),
        ("31", "Partitions Set(t0-1, t0-0) have been deleted."),
        ("32", "Added partition t1-2 starts from 5 instead of 0."),
    ],
)
def test_losses_of_kafka_are_told_apart_by_their_reason(row, reason):
    assert classify(LOSS + reason).row == row
