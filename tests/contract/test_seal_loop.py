"""The driver's seal loop on real tables of every format: the watermark that it shows, and steps that fail."""

from collections.abc import Callable
from datetime import datetime, timedelta
from typing import Any

import pytest

from headrace.writer.clients.kafka import BrokerUnreachable
from headrace.writer.driver.sealing.rounds import Rounds
from headrace.writer.driver.sealing.steps import Closer, seal_due
from headrace.writer.sealing.idleness import LogEndWatch
from headrace.writer.sealing.sealer import Sealer
from headrace.writer.status.progress import Progress
from tests.support.bucket_lake import MINUTE, NOON, PARTS, Lake, SilentTopics


class Recorded(SilentTopics):
    """A broker that counts questions; some of its partitions have young records."""

    def __init__(self, ends: dict[tuple[str, int], int], young: set[tuple[str, int]]) -> None:
        super().__init__(ends)
        self.young, self.asked = young, 0

    def first_records(self, instants_ms: Any) -> dict[tuple[str, int], tuple[int, int]]:
        self.asked += 1
        return {source: (0, 1) if source in self.young else (-1, -1) for source in instants_ms}


class Down(SilentTopics):
    """A broker that does not answer."""

    def sources(self, _: Any) -> list[tuple[str, int]]:
        raise BrokerUnreachable("no broker answers")


@pytest.mark.parametrize(("young", "waits"), [(False, 0), (True, 0), (False, 5)])
def test_an_idle_partition_holds_no_watermark_that_is_shown(lake: Lake, young: bool, waits: int) -> None:
    """Nothing is due, whatever Kafka answers: no bucket has ended. The watermark is shown all the same."""
    lake.write(NOON, seen={PARTS[0]: NOON + 40 * MINUTE, PARTS[1]: NOON + MINUTE})
    ends = {("clicks", part.partition): lake.table.snapshot().frontier(part) or 0 for part in PARTS}
    kafka = Recorded(
        ends | {("clicks", 1): ends["clicks", 1] + waits}, {("clicks", 0), *([("clicks", 1)] if young else [])}
    )
    sealer, progress = lake.sealer(), Progress("clicks")
    step = Closer(LogEndWatch(kafka, ["clicks"]), lambda: {"clicks": 1})
    rounds = Rounds(sealer, {"close": step}, progress, now=lambda: NOON + 41 * MINUTE)
    rounds.once()
    found = progress.view().bucket_counts
    assert found is not None
    counts = young or waits
    assert found.watermark.instant == NOON + (1 if counts else 40) * MINUTE - sealer.policy.out_of_orderness
    assert (found.watermark.held_by, found.watermark.idle) == (
        (PARTS[1], ()) if counts else (PARTS[0], (PARTS[1],))
    )  # fmt: skip
    assert lake.table.snapshot().closed_until is None
    rounds.once()
    assert kafka.asked == 1, "the answer serves for a while"


def test_kafka_that_does_not_answer_holds_up_no_round(lake: Lake) -> None:
    lake.write(NOON, seen={PARTS[0]: NOON + 40 * MINUTE, PARTS[1]: NOON + MINUTE})
    progress = Progress("clicks")
    step = Closer(LogEndWatch(Down({}), ["clicks"]), lambda: {"clicks": 1})
    Rounds(lake.sealer(), {"close": step}, progress, now=lambda: NOON + 41 * MINUTE).once()
    counts = progress.view().bucket_counts
    assert counts is not None
    assert (counts.watermark.held_by, counts.trouble) == (PARTS[1], ())


def test_a_step_that_fails_rests_and_is_tried_again_and_the_others_go_on(lake: Lake) -> None:
    lake.write(NOON)
    clock = [0.0]
    calls: list[datetime] = []
    progress = Progress("events")

    def failing(_: Sealer, now: datetime) -> None:
        calls.append(now)
        if len(calls) < 3:
            raise OSError("the disk is away")

    steps: dict[str, Callable[[Sealer, datetime], None]] = {"fail": failing, "seal": seal_due}
    # The wall clock may step back meanwhile: the rest is over all the same.
    instants = iter(NOON - timedelta(hours=n) for n in range(100))
    rounds = Rounds(lake.sealer(), steps, progress, now=lambda: next(instants), seconds=lambda: clock[0])
    rounds.once()
    counts = progress.view().bucket_counts
    assert counts is not None
    assert counts.trouble == (("fail", "OSError: the disk is away"),)
    assert counts.open == 1
    for seconds, expected in ((4, 1), (5, 2), (14, 2), (15, 3)):
        clock[0] = seconds
        rounds.once()
        assert len(calls) == expected
    counts = progress.view().bucket_counts
    assert counts is not None
    assert counts.trouble == ()
