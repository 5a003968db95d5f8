"""Collects the facts of an evaluation from driver, Kafka and supervisor, or from the lake without a driver.

Whoever does not answer makes facts missing or old. Nothing here raises for it, and nothing decides. Ages are counted by
the monotonic clock from the answer on: the wall clocks of driver and autoscaler may differ, and may step.
"""

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Any

from autoscaler.decision.facts import Facts, Pipeline
from autoscaler.decision.policy import Policy
from autoscaler.runtime import status_parser
from writer.clients.driver_endpoint import Driver, driver_status, find_announcement, status_at
from writer.clients.kafka import Cluster
from writer.config.loader import ReloadableConfig
from writer.config.pipelines import Config
from writer.core import logging
from writer.core.errors import HeadraceError
from writer.scaling.spark_settings import refusal
from writer.status import from_table
from writer.status.document import document
from writer.status.lag import lag_sample
from writer.status.lag_sample import LagSample

_KAFKA_WITHIN = timedelta(seconds=5)


@dataclass(frozen=True)
class StatusAnswer:
    """What the driver or the lake told of a pipeline."""

    document: Mapping[str, Any]
    at: datetime  # by the clock of whoever told it
    received_s: float  # by the monotonic clock of this process


@dataclass(frozen=True)
class LagAnswer:
    """A lag sample, the driver's or of this process."""

    sample: LagSample
    measured_s: float  # by the monotonic clock of this process


class FactsCollector:
    """The running application of a configuration."""

    def __init__(
        self, config: Config, names: Sequence[str], policy: Policy, file: ReloadableConfig | None = None, *,
        seconds: Callable[[], float] = time.monotonic,
    ) -> None:  # fmt: skip
        """`file`: where the pipelines are read again; without it they stay what they are.

        `seconds`: a monotonic clock.
        """
        self._config, self._names, self._policy, self._file = config, tuple(names), policy, file
        self._seconds = seconds
        self._cluster = Cluster(config.kafka.address, min(config.kafka.request_timeout, _KAFKA_WITHIN))
        self._frontiers: dict[str, status_parser.Frontiers] = {}
        self._statuses: dict[str, StatusAnswer] = {}  # name → the last one
        self._lags: dict[str, LagAnswer] = {}  # name → the newest one
        self._troubles: dict[str, str] = {}
        self.driver: Driver | None = None  # that answered last
        self.executors: Mapping[str, Any] | None = None  # its last answer about them

    def look(self, now: datetime) -> Facts:
        """Ask Kafka and the driver. Takes some seconds at most."""
        if self._file is not None and self._file.read_again() is not None:
            self._config, self._names = self._file.config, tuple(self._file.names)
        whole = self._ask_driver()
        self.executors = None if whole is None else whole.get("executors")
        levels = self._recovery_levels()
        found = [one for name in self._names if (one := self._pipeline(name, whole, now, levels.get(name, 0)))]
        spark = self._config.spark  # as the driver was started, where it does not answer
        refused = refusal(spark.master, spark.conf) if self.executors is None else self.executors.get("refused")
        return Facts(now, status_parser.executors(self.executors, self._policy), tuple(found), refused)

    def _pipeline(
        self, name: str, whole: Mapping[str, Any] | None, now: datetime, recovery_level: int
    ) -> Pipeline | None:
        """Return the facts of a pipeline; None while nothing was ever told of it."""
        answer = self._statuses.get(name)
        if (status := self._status(name, whole, now)) is not None:
            answer = self._statuses[name] = status
        if answer is None:
            return None
        now_s = self._seconds()
        lag = self._lags.get(name, LagAnswer(LagSample(), now_s))
        frontiers = self._frontiers[name] = status_parser.moved(
            self._frontiers.get(name, {}), answer.document["commits"], lag.sample
        )
        age_s = now_s - answer.received_s
        return status_parser.pipeline(
            name, answer.document, lag.sample, frontiers, self._policy, age_s=age_s, lag_age_s=now_s - lag.measured_s,
            clock_ahead=now - timedelta(seconds=age_s) - answer.at, recovery_level=recovery_level,
        )  # fmt: skip

    def _ask_driver(self) -> dict[str, Any] | None:
        """Return the whole `/status` of the driver that has these pipelines; None when it does not answer."""
        for name in self._names:
            driver = find_announcement(self._config.checkpoints, name, self._config.s3.settings)
            whole = None if driver is None else driver_status(driver, name)
            self.driver = None if whole is None else driver
            if whole is not None:
                return whole
        return None

    def _status(self, name: str, whole: Mapping[str, Any] | None, now: datetime) -> StatusAnswer | None:
        """Return a pipeline's part of `/status`: the driver's, else the lake's; None if it is unreadable.

        The lag is the driver's too. Kafka is asked where no driver answers, or Kafka did not answer the driver.
        """
        if whole is None or name not in whole["pipelines"]:
            view = from_table.view(name, self._config, self._cluster, now)
            if view.state == "unreadable":
                return None
            self._keep_lag(name, lag_sample(view.logs, view.frontier, now), now, view.error)
            return StatusAnswer(document([view], now, source="lake")["pipelines"][name], now, self._seconds())
        answer = StatusAnswer(whole["pipelines"][name], datetime.fromisoformat(whole["at"]), self._seconds())
        lag = LagSample.from_json(answer.document["lag"])
        limit = timedelta(seconds=self._policy.facts_age_max_s)
        if lag.is_fresh(answer.at) and lag.at is not None and answer.at - lag.at <= limit:
            self._keep_lag(name, lag, answer.at)
        else:
            self._ask_kafka(name, now)
        return answer

    def _ask_kafka(self, name: str, now: datetime) -> None:
        """Measure the lag beside a driver whose own sample is old."""
        try:
            frontier, logs = from_table.logs_now(name, self._config, self._cluster, now)
        except (HeadraceError, OSError) as error:
            self._keep_lag(name, LagSample(), now, str(error))
        else:
            self._keep_lag(name, lag_sample(logs, frontier, now), now)

    def _keep_lag(self, name: str, lag: LagSample, now: datetime, trouble: str = "") -> None:
        """Keep a sample; without one, the last one grows old. Say once that Kafka does not answer.

        `now`: by the clock that dated the sample.
        """
        words = "" if lag.at is not None else trouble
        if words and words != self._troubles.get(name):
            logging.warning("lag_measurement_failed", pipeline=name, error=words)
        self._troubles[name] = words
        if lag.at is not None:
            age_s = max(0.0, (now - lag.at).total_seconds())
            self._lags[name] = LagAnswer(lag, self._seconds() - age_s)

    def _recovery_levels(self) -> dict[str, int]:
        """Return on which level recovery is, by pipeline, where a supervisor answers."""
        at, certificate = self._config.supervisor, self._config.http.certificate
        scheme = "http" if certificate is None else "https"
        status = status_at(f"{scheme}://{at.host}:{at.port}", str(certificate or "")) if at.port else None
        try:
            return {name: int(one["level"]) for name, one in (status or {}).get("pipelines", {}).items()}
        except (LookupError, TypeError, ValueError, AttributeError):
            return {}
