"""Marks of logs: what a batch is known by, what compaction leaves of it, and what leaders say about epochs."""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from uuid import UUID

import google_crc32c
import pytest

from headrace.writer.core.log_mark import LogMark
from headrace.writer.core.offsets import OffsetRange, TopicPartition
from headrace.writer.kafka_reader.cluster import ClusterAddress
from headrace.writer.kafka_reader.errors import AccessDenied, Corrupt, LogDiverged, TopicGone, Unavailable
from headrace.writer.kafka_reader.log_marks import LogMarks
from headrace.writer.kafka_reader.protocol import Api, ErrorCode
from headrace.writer.kafka_reader.reader import RangeEvidence, RangeReader, ReadLimits
from headrace.writer.kafka_reader.record_batches import mark_at
from headrace.writer.offsets.log_continuity import Continues, Unproven, judge
from tests.servers.kafka_cluster import VERSIONS, Cluster as Fake, PartitionFetch, PartitionReply
from tests.support.kafka_batches import Raw, batch, marker

QUICK = ReadLimits(retry_timeout_s=0.3, fetch_wait_ms=10)
PATIENT = ReadLimits(retry_timeout_s=10, fetch_wait_ms=10)
ORIGINAL = batch(10, [b"a", b"b", b"c"], producer=4, sequence=20)
SOURCE = ("a", 0)


def mark(of: Raw, offset: int | None = None) -> LogMark:
    found = mark_at(memoryview(of.encode()), SOURCE, of.base if offset is None else offset)
    assert found is not None
    return found


@dataclass(frozen=True)
class Damaged(Raw):
    """A batch of which a disk changed one byte. `position`: of the byte, from the end where it is negative."""

    position: int = -1

    def encode(self) -> bytes:
        data = bytearray(super().encode())
        data[self.position] ^= 0xFF
        return bytes(data)


def damage(of: Raw, position: int) -> Damaged:
    return Damaged(**vars(of), position=position)


def log(*epochs: int, size: int = 10) -> list[Raw]:
    """Batches of ten records, each of the epoch that is given for it."""
    return [
        batch(at * size, [b"%d" % (at * size + n) for n in range(size)], leader_epoch=epoch)
        for at, epoch in enumerate(epochs)
    ]


def marks_of(fake: Fake, limits: ReadLimits = QUICK) -> LogMarks:
    return LogMarks(ClusterAddress(list(fake.addresses.values()), timeout_s=2), limits)


def ids(fake: Fake) -> dict[str, UUID]:
    return dict(fake.topic_ids)


def evidence(fake: Fake, start: int, end: int, limits: ReadLimits = PATIENT) -> RangeEvidence:
    """Read a range with what is before it."""
    with fake.running() as brokers, ClusterAddress(brokers, timeout_s=2).open() as cluster:
        wanted = [OffsetRange(TopicPartition("a", 1, 0), start, end)]
        reader = RangeReader(cluster, wanted, limits=limits, with_before=True)
        offsets = [offset for one in reader for offset in one.column("offset").to_pylist()]
    assert reader.evidence[0].is_complete
    assert all(start <= offset < end for offset in offsets)
    return reader.evidence[0]


@pytest.mark.parametrize("offset", [10, 11, 12])
def test_a_batch_has_one_mark_whichever_of_its_offsets_is_asked_for(offset: int) -> None:
    assert mark(ORIGINAL, offset) == mark(ORIGINAL)
    assert mark(ORIGINAL).leader_epoch == 7


@pytest.mark.parametrize("other", [
    replace(ORIGINAL, leader_epoch=8), batch(9, [b"a", b"b", b"c"], producer=4, sequence=20),
    batch(10, [b"a", b"b", b"d"], producer=4, sequence=20), batch(10, [b"a", b"b"], producer=4, sequence=20),
    batch(10, [b"a", b"b", b"c", b"d"], producer=4, sequence=20), replace(ORIGINAL, producer=5),
    replace(ORIGINAL, sequence=21), replace(ORIGINAL, records=tuple(replace(r, time_ms=5) for r in ORIGINAL.records)),
    replace(ORIGINAL, append_time_ms=5), replace(ORIGINAL, codec="gzip"),
])  # fmt: skip
def test_another_batch_at_the_same_offset_has_another_mark(other: Raw) -> None:
    assert not mark(other, 10).continues(mark(ORIGINAL))
    assert not mark(ORIGINAL).continues(mark(other, 10))


@pytest.mark.parametrize("kept", [(0, 1, 2), (0,), (2,), (0, 2), ()])
def test_a_batch_that_compaction_wrote_anew_continues_the_one_that_it_was(kept: Sequence[int]) -> None:
    records = tuple(ORIGINAL.records[at] for at in kept)
    anew = replace(ORIGINAL, records=records, delete_horizon=len(kept) == 3)
    assert mark(anew, 12).continues(mark(ORIGINAL))
    assert mark(anew, 12).is_compacted
    twice = replace(ORIGINAL, records=records[:1], delete_horizon=True)
    stored = LogMark(mark(anew).leader_epoch, mark(anew).fingerprint)
    assert mark(twice).continues(stored)


@pytest.mark.parametrize("other", [
    replace(ORIGINAL, leader_epoch=8, records=ORIGINAL.records[:1]),
    replace(batch(8, [b"a"]), after=13, producer=4, sequence=20), replace(ORIGINAL, sequence=2, records=()),
])  # fmt: skip
def test_another_batch_that_compaction_wrote_anew_does_not(other: Raw) -> None:
    assert not mark(other, 12).continues(mark(ORIGINAL))


def test_markers_are_batches_and_holes_have_no_mark() -> None:
    data = memoryview(b"".join(one.encode() for one in (ORIGINAL, marker(15, 4), batch(20, [b"x"]))))
    assert mark_at(data, SOURCE, 15) == mark(marker(15, 4))
    assert [mark_at(data, SOURCE, offset) for offset in (9, 13, 14, 16, 21)] == [None] * 5


def test_a_batch_that_is_not_whole_has_no_mark() -> None:
    data = ORIGINAL.encode()
    assert [mark_at(memoryview(data[:size]), SOURCE, 10) for size in (0, 20, 61, len(data) - 1)] == [None] * 4


def test_a_mark_is_a_number_of_63_bits() -> None:
    assert all(0 <= mark(batch(at, [b"%d" % at])).fingerprint < 2**63 for at in range(200))


@pytest.mark.parametrize(("start", "end"), [(0, 60), (10, 60), (15, 55), (59, 60), (1, 2)])
@pytest.mark.parametrize("fetch_bytes", [150, 100_000])
def test_a_range_says_which_batches_are_before_it_and_at_its_end(start: int, end: int, fetch_bytes: int) -> None:
    held = log(1, 1, 1, 1, 1, 1)
    found = evidence(Fake({SOURCE: held}), start, end, ReadLimits(fetch_bytes=fetch_bytes, fetch_wait_ms=10))
    assert found.before == (mark(held[(start - 1) // 10]) if start else None)
    assert found.last == mark(held[(end - 1) // 10])


def test_a_range_behind_what_retention_took_is_read_without_the_batch_before_it() -> None:
    held = log(1, 1, 1, 1, 1, 1)[3:]

    def say(asked: PartitionFetch) -> PartitionReply:
        return PartitionReply(ErrorCode.OFFSET_OUT_OF_RANGE) if asked.offset < 30 else PartitionReply()

    found = evidence(Fake({SOURCE: held}, say=say), 30, 60)
    assert found.before is None
    assert found.last == mark(held[-1])


def test_an_end_that_compaction_left_without_a_batch_has_no_mark() -> None:
    held = [*log(1, 1), batch(40, [b"40"], leader_epoch=1)]
    assert evidence(Fake({SOURCE: held}), 0, 30).last is None
    assert evidence(Fake({SOURCE: held}), 30, 41).before is None


def test_a_log_that_is_cut_and_grows_in_the_middle_of_a_range_is_noticed() -> None:
    fake = Fake({SOURCE: log(1, 1, 1, 1, 1, 1)})

    def cut(asked: PartitionFetch) -> PartitionReply:
        if asked.offset == 30:
            fake.logs[SOURCE] = log(1, 1, 2, 2, 2, 2)
        return PartitionReply()

    fake.say = cut
    with pytest.raises(LogDiverged, match=r"a/0 at offset 30 of \[0, 60\): the log was cut at offset 20"):
        evidence(fake, 0, 60, ReadLimits(fetch_bytes=150, fetch_wait_ms=10))


@pytest.mark.parametrize("grown", [(1, 1, 1, 2, 2, 2), (1, 1, 1, 1, 1, 1), (1, 1, 1, 3, 4, 4)])
def test_a_log_that_goes_on_under_another_leader_is_read(grown: Sequence[int]) -> None:
    fake = Fake({SOURCE: log(*grown)})
    found = evidence(fake, 0, 60, ReadLimits(fetch_bytes=150, fetch_wait_ms=10))
    assert found.records == 60


def test_marks_are_of_the_batches_before_offsets_also_within_an_open_transaction() -> None:
    held = log(1, 1, 2)
    with (fake := Fake({SOURCE: held, ("b", 1): log(3)})).running():
        found = marks_of(fake).marks_before({SOURCE: 15, ("b", 1): 10}, ids(fake))
        assert found == {SOURCE: mark(held[1]), ("b", 1): mark(log(3)[0])}
        assert marks_of(fake).leader_epochs(ids(fake)) == {SOURCE: 1, ("b", 1): 1}


@pytest.mark.parametrize("version", [2, 3, 4])
@pytest.mark.parametrize(("epoch", "answer"), [
    (0, (0, 0)), (1, (1, 20)), (2, (1, 20)), (3, (3, 50)), (4, (-1, -1)),
])  # fmt: skip
def test_a_leader_says_where_an_epoch_ends(version: int, epoch: int, answer: tuple[int, int]) -> None:
    fake = Fake({SOURCE: log(1, 1, 3, 3, 3)}, versions={**VERSIONS, Api.OFFSET_FOR_LEADER_EPOCH: (0, version)})
    with fake.running():
        end = marks_of(fake).epoch_ends({SOURCE: epoch})[SOURCE]
    assert (end.epoch, end.offset) == answer


def test_a_question_about_epochs_follows_the_leader_and_is_tried_again() -> None:
    fake = Fake({SOURCE: log(1), ("b", 0): log(1)}, leaders={("b", 0): (2, 5)})
    fake.epoch_errors = [ErrorCode.FENCED_LEADER_EPOCH, ErrorCode.NOT_LEADER_OR_FOLLOWER]
    with fake.running():
        ends = marks_of(fake, PATIENT).epoch_ends({SOURCE: 1, ("b", 0): 1})
    assert {source: end.offset for source, end in ends.items()} == {SOURCE: 10, ("b", 0): 10}


@pytest.mark.parametrize(("error", "kind", "words"), [
    (ErrorCode.TOPIC_AUTHORIZATION_FAILED, AccessDenied, "DESCRIBE on topic a"),
    (ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, TopicGone, "a/0"),
    (ErrorCode.NOT_LEADER_OR_FOLLOWER, Unavailable, "a/0: the broker says NOT_LEADER"),
])  # fmt: skip
def test_a_question_about_epochs_that_is_refused_says_why(error: ErrorCode, kind: type, words: str) -> None:
    fake = Fake({SOURCE: log(1)}, epoch_errors=[error] * 1_000)
    with fake.running(), pytest.raises(kind, match=words):
        marks_of(fake).epoch_ends({SOURCE: 1})


def test_a_mark_is_read_without_the_records_of_its_batch() -> None:
    whole = replace(log(1)[0], codec="zstd")
    unreadable = replace(whole, codec="none")

    class OtherCodec(Raw):
        def encode(self) -> bytes:
            data = bytearray(super().encode())
            data[22] = 4
            data[17:21] = google_crc32c.value(bytes(data[21:])).to_bytes(4, "big")
            return bytes(data)

    held = OtherCodec(**vars(unreadable))
    with (fake := Fake({SOURCE: [held]})).running():
        assert marks_of(fake).marks_before({SOURCE: 10}, ids(fake)) == {SOURCE: mark(held)}
    with pytest.raises(Corrupt, match="a/0 at offset 0: a record batch cannot be read"):
        evidence(Fake({SOURCE: [held]}), 0, 10)


LAST_BYTE, CHECKSUM, NEWEST_TIME = -1, 17, 40


@pytest.mark.parametrize("fetch_bytes", [150, 100_000])
@pytest.mark.parametrize("position", [LAST_BYTE, CHECKSUM, NEWEST_TIME])
def test_a_batch_that_was_read_before_it_was_damaged_stops_no_range_behind_it(position: int, fetch_bytes: int) -> None:
    held = log(1, 1, 1)
    broken = [held[0], damage(held[1], position), held[2]]
    found = evidence(Fake({SOURCE: list(broken)}), 20, 30, ReadLimits(fetch_bytes=fetch_bytes, fetch_wait_ms=10))
    assert found.records == 10
    assert found.before is not None
    assert found.before.is_damaged
    assert not found.before.contradicts(mark(held[1]))
    assert found.before.continues(mark(held[1])) == (position == LAST_BYTE)
    with (fake := Fake({SOURCE: list(broken)})).running():
        (before,) = marks_of(fake).marks_before({SOURCE: 20}, ids(fake)).values()
    assert before == found.before
    assert isinstance(judge(20, 0, mark(held[1]), before, None), Continues if position == LAST_BYTE else Unproven)


def test_a_damaged_batch_that_may_hold_the_first_offsets_of_a_range_stops_it_with_the_way_on() -> None:
    held = log(1, 1, 1)
    broken = [held[0], damage(held[1], LAST_BYTE), replace(held[2], base=25, records=held[2].records[5:])]
    words = r"a/0 at offset 20: the checksum of the record batch before it does not fit.*adopt --offsets a:0=OFFSET"
    with pytest.raises(Corrupt, match=words):
        evidence(Fake({SOURCE: list(broken)}), 20, 30)


def test_a_damaged_batch_of_a_range_stops_it_with_the_way_on() -> None:
    held = log(1, 1, 1)
    broken = [held[0], damage(held[1], LAST_BYTE), held[2]]
    words = r"a/0 at offset 10: the checksum of a record batch does not fit\. .*adopt --offsets a:0=OFFSET"
    for start, end in ((10, 30), (15, 20), (5, 30)):
        with pytest.raises(Corrupt, match=words):
            evidence(Fake({SOURCE: list(broken)}), start, end)
