"""A sample of the lag: measured by the driver, carried by `/status`, read by the autoscaler; and when it is too old."""

from collections.abc import Iterator
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest

from headrace.autoscaler.decision.facts import Partition
from headrace.autoscaler.decision.policy import Policy
from headrace.autoscaler.runtime.collector import FactsCollector
from headrace.recovery.backfill.throttle import ask_live_lag
from headrace.writer.clients.driver_endpoint import announce, this_driver
from headrace.writer.config.pipelines import Config
from headrace.writer.config.sections.connections import Http
from headrace.writer.status.lag import lag_sample
from headrace.writer.status.lag_sample import AppendedOffsets, Lag, LagSample
from headrace.writer.status.model import Logs, Sample
from headrace.writer.status.progress import Progress
from headrace.writer.web.endpoints import serving
from tests.support.sample_records import config
from tests.support.status_cluster import Cluster

NOON = datetime(2026, 11, 20, 12, tzinfo=UTC)
A, B = ("clicks", 0), ("clicks", 1)


def at(seconds: float) -> datetime:
    return NOON + timedelta(seconds=seconds)


def grown(*samples: tuple[float, int]) -> LagSample:
    """One partition: seconds after noon, end of the log."""
    known = Logs().with_history(Sample(at(after), {A: end}) for after, end in samples)
    return lag_sample(known, {}, at(samples[-1][0]))


# --- the type ---------------------------------------------------------------------------------------------------


def test_a_lag_sample_is_read_from_status_as_it_was_measured() -> None:
    known = Logs(interval=timedelta(seconds=5)).with_sample(Sample(at(0), {A: 100}))
    known = known.with_sample(Sample(at(15), {A: 200, B: 7}))
    sample = lag_sample(known, {A: 150}, at(20))
    assert (sample.offsets, [one.frontier for one in sample.partitions]) == (57, [150, None])
    assert LagSample.from_json(sample.to_json(at(20))) == LagSample(
        at(15), timedelta(seconds=5),
        (Lag("clicks", 0, 50, 12.35, 150, None, 150), Lag("clicks", 1, 7, 17.857, 0, None)),
        (AppendedOffsets(at(0), 0), AppendedOffsets(at(15), 100)),
    )  # fmt: skip
    assert LagSample.from_json(LagSample().to_json(NOON)) == LagSample()


@pytest.mark.parametrize(("age_s", "fresh"), [(0, True), (45, True), (45.1, False)])
def test_a_sample_older_than_three_intervals_is_no_answer(age_s: float, fresh: bool) -> None:
    sample = LagSample(NOON, timedelta(seconds=15))
    assert sample.is_fresh(at(age_s)) == fresh
    assert not LagSample().is_fresh(NOON)


def test_rates_are_means_between_samples_that_reach_far_enough() -> None:
    assert grown((0, 0), (480, 48_000), (600, 60_000)).arriving_per_s(600) == 100
    assert grown((0, 0), (480, 48_000), (600, 60_000)).arriving_per_s(120) == 100
    assert grown((0, 0), (60, 60_000)).arriving_per_s(120) is None, "what came before is not known"
    assert grown((0, 60_000)).arriving_per_s(120) is None
    assert LagSample().arriving_per_s(120) is None
    assert grown((0, 500), (600, 20)).arriving_per_s(600) == 0, "a topic that is shorter than before"


def test_of_frequent_samples_some_are_carried_and_the_newest() -> None:
    sample = grown(*((second / 2, second) for second in range(301)))
    assert len(sample.appended) == 16
    assert sample.appended[-1] == AppendedOffsets(at(150), 300)
    assert sample.arriving_per_s(100) == 2


# --- who reads it -----------------------------------------------------------------------------------------------


class Asked(Cluster):
    """A cluster that counts the questions."""

    questions = 0

    def topics(self, names):
        self.questions += 1
        return super().topics(names)


@pytest.fixture
def settings(tmp_path: Path) -> Config:
    return config(tmp_path)


@pytest.fixture
def progress(settings: Config) -> Iterator[Progress]:
    """A driver that serves HTTP, and stands where readers look for it."""
    found = Progress("clicks")
    found.record_start(epoch=3, run=1, frontier={A: 40}, limits={}, buckets=[], recent=[])
    with serving(Http(port=0), {"clicks": found}) as url:
        announce(settings.checkpoints, "clicks", this_driver(url, 3))
        yield found


def heard(progress: Progress, age_s: float) -> None:
    """Let the driver's thread have asked Kafka some seconds ago, every two seconds, and five minutes before."""
    asked = datetime.now(UTC) - timedelta(seconds=age_s)
    earlier = tuple(Sample(asked - timedelta(seconds=ago), {A: 100 - ago // 10}) for ago in (600, 120))
    progress.add_sample(Sample(asked, {A: 100}), {A: 0})
    progress.set_lag_history(timedelta(seconds=2), earlier)


def look(settings: Config, cluster: Asked):
    live = FactsCollector(settings, ["clicks"], Policy())
    live._cluster = cluster
    (found,) = live.collect(datetime.now(UTC)).pipelines
    return found


def test_the_autoscaler_takes_a_fresh_sample_of_the_driver_and_leaves_kafka_alone(
    settings: Config, progress: Progress
) -> None:
    heard(progress, 5)
    cluster = Asked(up=False)
    found = look(settings, cluster)
    assert (cluster.questions, [one.lag_offsets for one in found.partitions]) == (0, [60])
    assert (found.arriving_per_s, found.arriving_lately_per_s) == (0.1, 0.1)
    assert 5 <= found.lag_age_s < 7


@pytest.mark.parametrize("age_s", [7.0, None])
def test_the_autoscaler_asks_kafka_where_kafka_did_not_answer_the_driver(
    settings: Config, progress: Progress, age_s: float | None
) -> None:
    if age_s is not None:
        heard(progress, age_s)
    cluster = Asked(ends=1_000)
    found = look(settings, cluster)
    assert cluster.questions == 1
    assert [one.lag_offsets for one in found.partitions] == [1_000, 1_000], "the table holds nothing"
    assert found.lag_age_s < 2
    assert found.arriving_per_s is not None


def test_the_autoscaler_asks_kafka_where_no_driver_answers(settings: Config) -> None:
    cluster = Asked(ends=1_000)
    found = look(settings, cluster)
    assert cluster.questions == 1
    assert list(found.partitions) == [Partition("clicks", n, 1_000, found.partitions[n].lag_s) for n in (0, 1)]


def test_a_sample_grows_old_where_nothing_answers(settings: Config, progress: Progress, caplog) -> None:
    heard(progress, 5)
    passed_s = 0.0
    live = FactsCollector(settings, ["clicks"], Policy(), seconds=lambda: passed_s)
    live._cluster = Asked(up=False)
    live.collect(datetime.now(UTC))
    progress.set(logs=Logs())
    passed_s = 90.0
    for _ in range(2):
        (found,) = live.collect(datetime.now(UTC)).pipelines
    assert found.lag_age_s > 90
    assert sum("lag_measurement_failed" in line for line in caplog.messages) == 1


def test_a_backfill_is_slowed_by_a_fresh_lag_only(settings: Config, progress: Progress) -> None:
    assert ask_live_lag(settings, "clicks") is None
    heard(progress, 5)
    progress.add_dates({A: (40, datetime.now(UTC) - timedelta(seconds=300))})
    assert ask_live_lag(settings, "clicks") == pytest.approx(300, abs=2)
    progress.set(logs=replace(progress.view().logs, samples=()))
    heard(progress, 7)
    assert ask_live_lag(settings, "clicks") is None
