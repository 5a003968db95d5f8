"""What a person and a scraper see of the life of buckets."""

from collections.abc import Sequence
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from headrace.writer.batch.lateness import BOUNDS_S
from headrace.writer.config.sections.bucket_upkeep import Seal
from headrace.writer.core.files import BucketFile
from headrace.writer.core.offsets import TopicPartition
from headrace.writer.output.status_screen import seal_lines
from headrace.writer.sealing.bucket_states import (
    BucketCounts,
    SealFacts,
    bucket_counts,
    bucket_state,
    list_bucket,
    state_without_rows,
)
from headrace.writer.sealing.rules import SealBlocked, SealDecision, SealLater, SealNow, Unsealed
from headrace.writer.sealing.unsealed import UnsealedIndex
from headrace.writer.sealing.watermark import Watermark
from headrace.writer.status.document import buckets
from headrace.writer.status.progress import Progress
from headrace.writer.web.metrics_export import exposition

NOON = datetime(2026, 11, 20, 12, tzinfo=UTC)
HOUR = timedelta(hours=1)
MARK = NOON + timedelta(minutes=20)


def unsealed(hour: int, **given) -> Unsealed:
    start = NOON + hour * HOUR
    return Unsealed((f"{start:%Y-%m-%dT%H}",), start, start + HOUR, NOON, **given)


def seal_facts(
    buckets: Sequence[Unsealed], decisions: Sequence[SealDecision] = (), *, mark: datetime | None = MARK, **policy: Any
) -> SealFacts:
    watermark = Watermark(mark, TopicPartition("clicks", 1, 3), (TopicPartition("clicks", 1, 1),))
    index = UnsealedIndex("table", 7, {bucket.bucket: bucket for bucket in buckets})
    return SealFacts(Seal(**policy), NOON, watermark, index, {decision.bucket: decision for decision in decisions})


@pytest.fixture
def facts() -> SealFacts:
    """Two closed buckets, one of them blocked, one that changed after its seal, and two open ones."""
    buckets = [unsealed(-3, late=4), unsealed(-2), unsealed(-1, sealed=2, late=3), unsealed(0), unsealed(1)]
    decisions = [
        SealBlocked(buckets[0].bucket, "its files are odd"),
        SealNow(buckets[1].bucket),
        SealLater(buckets[2].bucket, NOON),
    ]
    return seal_facts(buckets, decisions)


@pytest.fixture
def counts(facts: SealFacts) -> BucketCounts:
    return bucket_counts(facts, ("hour",), [], [("seal", "the disk is away")], NOON + HOUR)


def test_buckets_are_counted_by_state_each_once(facts, counts):
    assert (counts.open, counts.closed, counts.reopened, len(counts.blocked)) == (2, 1, 1, 1)
    assert counts.late == 7
    assert counts.next == ("hour=2026-11-20T12", NOON + HOUR)
    assert counts.blocked == (("hour=2026-11-20T09", "its files are odd"),)
    names = [bucket_state(facts, key).name for key in facts.index.buckets]
    assert names == ["blocked", "closed", "reopened", "open", "open"]


def test_a_sealed_bucket_that_a_rewind_opened_is_reopened_everywhere():
    rewound = seal_facts([unsealed(0, sealed=2)])
    counts = bucket_counts(rewound, ("hour",), [], (), NOON)
    assert (counts.open, counts.reopened, counts.next) == (0, 1, ("hour=2026-11-20T12", NOON + HOUR))
    (key,) = rewound.index.buckets
    state = bucket_state(rewound, key)
    assert state.name == "reopened"
    assert state.why.startswith("it is closed when the watermark reaches 2026-11-20 13:00:00 UTC")


@pytest.mark.parametrize(
    ("bucket", "decision", "name", "why"),
    [
        (unsealed(0), None, "open", "reaches 2026-11-20 13:00:00 UTC; it stands at 2026-11-20 12:20:00 UTC, held back"),
        (unsealed(0, sealed=1), None, "reopened", "40 min short"),
        (unsealed(-1), SealNow, "closed", "about to be sealed"),
        (unsealed(-1, sealed=1), SealNow, "reopened", "about to be sealed"),
        (unsealed(-1, sealed=1), SealLater, "reopened", "it is sealed again after 2026-11-20 13:00:00 UTC"),
        (unsealed(-1), SealBlocked, "blocked", "a gap"),
        (unsealed(-1, sealed=1), SealBlocked, "blocked", "a gap"),
        (Unsealed(("x",), None, None, NOON), None, "open", "it goes by no time, so nothing closes it"),
        (Unsealed(("x",), None, None, NOON, sealed=1), None, "reopened", "it goes by no time, so nothing closes it"),
    ],
)
def test_a_state_has_a_sentence_that_says_why(bucket, decision, name, why):
    about = {SealNow: (), SealLater: (NOON + HOUR,), SealBlocked: ("a gap",)}
    decisions = [decision(bucket.bucket, *about[decision])] if decision else []
    state = bucket_state(seal_facts([bucket], decisions), bucket.bucket)
    assert state.name == name
    assert why in state.why


@pytest.mark.parametrize(
    ("given", "why"),
    [
        ({"mark": None}, "there is none yet: clicks/3 has no row yet"),
        ({"mark": NOON + HOUR}, "it is about to be closed"),
        ({"mark": NOON + HOUR, "allowed_lateness": "1 h"}, "reaches 2026-11-20 14:00:00 UTC"),
        ({"enabled": False}, "sealing is switched off (seal.enabled)"),
    ],
)
def test_an_open_bucket_says_what_closes_it(given, why):
    bucket = unsealed(0)
    assert why in bucket_state(seal_facts([bucket], **given), bucket.bucket).why
    without_rows = state_without_rows(seal_facts([], **given), NOON + HOUR)
    assert without_rows.name == "open"
    assert why in without_rows.why


def test_a_bucket_that_no_log_entry_names_is_sealed_or_had_no_row(facts):
    assert bucket_state(facts, ("2026-11-20T02",)).name == "sealed"
    assert bucket_state(facts, ("2026-11-20T02",)).why == ""
    assert state_without_rows(facts, NOON).name == "empty"


@pytest.mark.parametrize(
    ("rows", "about", "name", "why"),
    [
        (10, {"added": 10}, "closed", "about to be sealed"),
        (9, {"added": 10}, "blocked", "its files hold 9 rows, the log has 10"),
        (None, {"added": 10}, "blocked", "another client wrote x.parquet"),
        (9, {"added": 10, "rows_known": False}, "closed", "about to be sealed"),
        (9, {"added": 1, "sealed": 3}, "reopened", "about to be sealed"),
    ],
)
def test_a_due_bucket_with_other_rows_than_the_log_is_blocked(rows, about, name, why):
    """With the manifest of an earlier version unread, nobody knows how many rows the log means."""
    bucket = unsealed(-1, **about)
    facts = seal_facts([bucket], [SealNow(bucket.bucket)])
    files = [BucketFile("x.parquet", bucket.bucket, rows, 100)]
    listed = list_bucket(facts, ("hour",), bucket.bucket, (bucket.start, bucket.end), files, None)
    assert listed.state.name == name
    assert why in listed.state.why


def test_a_person_sees_the_watermark_what_holds_it_and_what_is_not_sealed(counts):
    behind = [0] * (len(BOUNDS_S) + 1)
    behind[1] = 98
    behind[4] = 2
    beyond = [0] * (len(BOUNDS_S) + 1)
    beyond[2] = 7
    lateness = {"bounds_seconds": list(BOUNDS_S), "behind": behind, "beyond": beyond}
    shown = seal_lines({"seals": buckets(counts, NOON + HOUR), "lateness": lateness, "totals": {"late_rows": 7}})
    progress = (
        "closed until 2026-11-20 12:00:00 UTC, 1 bucket closed, 1 bucket reopened, 2 buckets open, 1 bucket blocked, "
        "next hour=2026-11-20T12, which ends 2026-11-20 13:00:00 UTC"
    )
    shares = "50% of rows within 4.0 s, 99% of rows within 4 min, 99.9% of rows within 4 min; 7 late rows"
    assert [(label, text.plain) for label, text in shown] == [
        ("watermark", "2026-11-20 12:20:00 UTC, 40 min ago; held by clicks/3; 1 partition idle"),
        ("sealed", progress),
        ("blocked", "hour=2026-11-20T09: its files are odd"),
        ("seal", "fails: the disk is away"),
        ("lateness", shares),
    ]


def test_the_status_says_nothing_of_buckets_that_were_not_read():
    empty = [0] * (len(BOUNDS_S) + 1)
    lateness = {"bounds_seconds": list(BOUNDS_S), "behind": empty, "beyond": empty}
    shown = seal_lines({"seals": None, "lateness": lateness, "totals": {"late_rows": 0}})
    assert [text.plain for _, text in shown] == [""]


def test_a_scraper_sees_them_too(counts):
    progress = Progress("clicks", now=lambda: NOON + HOUR)
    progress.set(bucket_counts=counts)
    text = exposition({"clicks": progress}, "")[0].decode()
    for line in (
        'headrace_unsealed_buckets{pipeline="clicks",state="blocked"} 1.0',
        'headrace_unsealed_buckets{pipeline="clicks",state="closed"} 1.0',
        'headrace_unsealed_buckets{pipeline="clicks",state="reopened"} 1.0',
        'headrace_open_buckets{pipeline="clicks"} 2.0',
        'headrace_sealing_failing_steps{pipeline="clicks"} 1.0',
    ):
        assert line in text
