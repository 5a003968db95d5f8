"""What a person and a scraper see of the life of buckets."""

from datetime import UTC, datetime, timedelta

import pytest

from writer.batch.lateness import BOUNDS_S
from writer.core.offsets import TopicPartition
from writer.output.status_screen import seal_lines
from writer.sealing.bucket_states import BucketCounts, bucket_counts
from writer.sealing.rules import SealBlocked, SealLater, SealNow, Unsealed
from writer.sealing.watermark import Watermark
from writer.status.document import buckets
from writer.status.progress import Progress
from writer.web.metrics_export import exposition

NOON = datetime(2026, 11, 20, 12, tzinfo=UTC)
HOUR = timedelta(hours=1)


def unsealed(hour: int, **given) -> Unsealed:
    start = NOON + hour * HOUR
    return Unsealed((f"{start:%Y-%m-%dT%H}",), start, start + HOUR, NOON, **given)


@pytest.fixture
def found() -> BucketCounts:
    each = [unsealed(-3, late=4), unsealed(-2), unsealed(-1, sealed=2, late=3), unsealed(0), unsealed(1)]
    states = [
        SealBlocked(each[0].bucket, "its files are odd"),
        SealNow(each[1].bucket),
        SealLater(each[2].bucket, NOON),
    ]
    mark = Watermark(NOON + timedelta(minutes=20), TopicPartition("clicks", 1, 3), (TopicPartition("clicks", 1, 1),))
    return bucket_counts(("hour",), each, states, [], mark, NOON, [("seal", "the disk is away")], NOON + HOUR)


def test_buckets_are_counted_by_what_they_wait_for(found):
    assert (found.open, found.closed, found.reopened, found.late) == (2, 2, 1, 7)
    assert found.next == ("hour=2026-11-20T12", NOON + HOUR)
    assert found.blocked == (("hour=2026-11-20T09", "its files are odd"),)


def test_a_person_sees_the_watermark_what_holds_it_and_what_is_not_sealed(found):
    behind = [0] * (len(BOUNDS_S) + 1)
    behind[1], behind[4] = 98, 2
    beyond = [0] * (len(BOUNDS_S) + 1)
    beyond[2] = 7
    lateness = {"bounds_seconds": list(BOUNDS_S), "behind": behind, "beyond": beyond}
    shown = seal_lines({"seals": buckets(found, NOON + HOUR), "lateness": lateness, "totals": {"late_rows": 7}})
    assert [(label, text.plain) for label, text in shown] == [
        ("watermark", "2026-11-20 12:20:00 UTC, 40 min ago; held by clicks/3; 1 partition idle"),
        ("sealed", ("closed until 2026-11-20 12:00:00 UTC, 2 buckets not sealed yet, 1 bucket to be sealed again, "
         "2 buckets open, next hour=2026-11-20T12, which ends 2026-11-20 13:00:00 UTC")),
        ("blocked", "hour=2026-11-20T09: its files are odd"),
        ("seal", "fails: the disk is away"),
        ("lateness", ("50% of rows within 4.0 s, 99% of rows within 4 min, 99.9% of rows within 4 min; "
         "7 late rows")),
    ]  # fmt: skip


def test_nothing_is_said_of_buckets_that_were_not_looked_at():
    empty = [0] * (len(BOUNDS_S) + 1)
    lateness = {"bounds_seconds": list(BOUNDS_S), "behind": empty, "beyond": empty}
    shown = seal_lines({"seals": None, "lateness": lateness, "totals": {"late_rows": 0}})
    assert [text.plain for _, text in shown] == [""]


def test_a_scraper_sees_them_too(found):
    progress = Progress("clicks", now=lambda: NOON + HOUR)
    progress.set_bucket_counts(found)
    text = exposition({"clicks": progress}, "")[0].decode()
    for line in (
        'headrace_unsealed_buckets{pipeline="clicks",state="blocked"} 1.0',
        'headrace_unsealed_buckets{pipeline="clicks",state="closed"} 2.0',
        'headrace_unsealed_buckets{pipeline="clicks",state="reopened"} 1.0',
        'headrace_open_buckets{pipeline="clicks"} 2.0',
        'headrace_sealing_failing_steps{pipeline="clicks"} 1.0',
    ):
        assert line in text
