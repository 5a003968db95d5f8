"""Collects the facts of an evaluation from driver, Kafka and supervisor, or from the lake without a driver.

Whoever does not answer makes facts missing or old. Nothing here raises for it, and nothing decides. Ages are counted by
the monotonic clock from the answer on: the wall clocks of driver and autoscaler may differ, and may step.
"""

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Any

from headrace.autoscaler.decision.facts import Facts, Pipeline
from headrace.autoscaler.decision.policy import Policy
from headrace.autoscaler.runtime import status_parser
from headrace.writer.clients.driver_endpoint import Driver, driver_status, find_announcement, status_at
from headrace.writer.clients.kafka import Cluster
from headrace.writer.config.loader import ReloadableConfig
from headrace.writer.config.pipelines import Config
from headrace.writer.core import logging
from headrace.writer.core.errors import HeadraceError
from headrace.writer.scaling.spark_settings import refusal
from headrace.writer.status import from_table
from headrace.writer.status.document import document
from headrace.writer.status.lag import lag_sample
from headrace.writer.status.lag_sample import LagSample

_KAFKA_WITHIN = timedelta(seconds=5)


@dataclass(frozen=True)
class StatusAnswer:
    """What the driver or the lake told of a pipeline."""

    document: Mapping[str, Any]
    # By the clock of whoever told it.
    at: datetime
    # By the monotonic clock of this process.
    received_s: float


@dataclass(frozen=True)
class LagAnswer:
    """A lag sample, the driver's or of this process."""

    sample: LagSample
    # By the monotonic clock of this process.
    measured_s: float


class FactsCollector:
    """The running application of a configuration."""

    def __init__(
        self,
        config: Config,
        names: Sequence[str],
        policy: Policy,
        file: ReloadableConfig | None = None,
        *,
        seconds: Callable[[], float] = time.monotonic,
    ) -> None:
        """`file`: where the pipelines are read again; without it they stay what they are.

        `seconds`: a monotonic clock.
        """
        self._config = config
        self._names = tuple(names)
        self._policy = policy
        self._file = file
        self._seconds = seconds
        self._cluster = Cluster(config.kafka.address, min(config.kafka.request_timeout, _KAFKA_WITHIN))
        # By pipeline, all of these: the newest answers, and the last error that a warning told.
        self._frontiers: dict[str, status_parser.Frontiers] = {}
        self._statuses: dict[str, StatusAnswer] = {}
        self._lags: dict[str, LagAnswer] = {}
        self._lag_errors: dict[str, str] = {}
        # The driver that answered last.
        self.driver: Driver | None = None
        # Its last answer about its executors.
        self.executors: Mapping[str, Any] | None = None

    def collect(self, now: datetime) -> Facts:
        """Ask Kafka and the driver. Takes some seconds at most."""
        if self._file is not None and self._file.read_again() is not None:
            self._config = self._file.config
            self._names = tuple(self._file.names)
        status = self._ask_driver()
        self.executors = None if status is None else status.get("executors")
        levels = self._recovery_levels()
        pipelines = [self._pipeline(name, status, now, levels.get(name, 0)) for name in self._names]
        return Facts(
            at=now,
            executors=status_parser.parse_executors(self.executors, self._policy),
            pipelines=tuple(pipeline for pipeline in pipelines if pipeline is not None),
            refused=self._refusal(),
        )

    def _refusal(self) -> str | None:
        """Return why executors cannot be scaled. Where no driver answers, the configuration says it."""
        if self.executors is not None:
            return self.executors.get("refused")
        return refusal(self._config.spark.master, self._config.spark.conf)

    def _pipeline(
        self, name: str, driver_document: Mapping[str, Any] | None, now: datetime, recovery_level: int
    ) -> Pipeline | None:
        """Return the facts of a pipeline; None while nothing was ever told of it."""
        status = self._status(name, driver_document, now)
        if status is not None:
            self._statuses[name] = status
        if name not in self._statuses:
            return None
        answer = self._statuses[name]
        now_s = self._seconds()
        lag = self._lags.get(name, LagAnswer(LagSample(), now_s))
        frontiers = status_parser.update_frontiers(
            self._frontiers.get(name, {}), answer.document["commits"], lag.sample
        )
        self._frontiers[name] = frontiers
        age_s = now_s - answer.received_s
        return status_parser.parse_pipeline(
            name,
            answer.document,
            lag.sample,
            frontiers,
            self._policy,
            age_s=age_s,
            lag_age_s=now_s - lag.measured_s,
            clock_ahead=now - timedelta(seconds=age_s) - answer.at,
            recovery_level=recovery_level,
        )

    def _ask_driver(self) -> dict[str, Any] | None:
        """Return the whole `/status` of the driver that has these pipelines; None when it does not answer."""
        for name in self._names:
            driver = find_announcement(self._config.checkpoints, name, self._config.stores)
            if driver is None:
                continue
            status = driver_status(driver, name)
            if status is not None:
                self.driver = driver
                return status
        self.driver = None
        return None

    def _status(self, name: str, driver_document: Mapping[str, Any] | None, now: datetime) -> StatusAnswer | None:
        """Return a pipeline's part of `/status`: the driver's, else the lake's; None if it is unreadable.

        The lag is the driver's too. Kafka is asked where no driver answers, or Kafka did not answer the driver.
        """
        if driver_document is None or name not in driver_document["pipelines"]:
            return self._lake_status(name, now)
        driver_time = datetime.fromisoformat(driver_document["at"])
        answer = StatusAnswer(driver_document["pipelines"][name], driver_time, self._seconds())
        lag = LagSample.from_json(answer.document["lag"])
        max_age = timedelta(seconds=self._policy.max_facts_age_s)
        if lag.is_fresh(driver_time) and lag.at is not None and driver_time - lag.at <= max_age:
            self._record_lag(name, lag, driver_time)
        else:
            self._ask_kafka(name, now)
        return answer

    def _lake_status(self, name: str, now: datetime) -> StatusAnswer | None:
        """Return a pipeline's part of `/status` from table and Kafka; None if the table is unreadable."""
        view = from_table.view(name, self._config, self._cluster, now)
        if view.state == "unreadable":
            return None
        self._record_lag(name, lag_sample(view.logs, view.frontier, now), now, view.error)
        lake_document = document([view], now, source="lake")
        return StatusAnswer(lake_document["pipelines"][name], now, self._seconds())

    def _ask_kafka(self, name: str, now: datetime) -> None:
        """Measure the lag beside a driver whose own sample is old."""
        try:
            frontier, logs = from_table.logs_now(name, self._config, self._cluster, now)
        except (HeadraceError, OSError) as error:
            self._record_lag(name, LagSample(), now, str(error))
        else:
            self._record_lag(name, lag_sample(logs, frontier, now), now)

    def _record_lag(self, name: str, lag: LagSample, now: datetime, error: str = "") -> None:
        """Keep a sample; without one, the last one grows old. Say once that Kafka does not answer.

        `now`: by the clock that dated the sample. `error`: why there is no sample.
        """
        if lag.at is not None:
            age_s = max(0.0, (now - lag.at).total_seconds())
            self._lags[name] = LagAnswer(lag, self._seconds() - age_s)
            self._lag_errors[name] = ""
            return
        if error and error != self._lag_errors.get(name):
            logging.warning("lag_measurement_failed", pipeline=name, error=error)
        self._lag_errors[name] = error

    def _recovery_levels(self) -> dict[str, int]:
        """Return on which level recovery is, by pipeline, where a supervisor answers."""
        supervisor = self._config.supervisor
        certificate = self._config.http.certificate
        if not supervisor.port:
            return {}
        scheme = "http" if certificate is None else "https"
        status = status_at(f"{scheme}://{supervisor.host}:{supervisor.port}", str(certificate or "")) or {}
        try:
            return {name: int(pipeline["level"]) for name, pipeline in status.get("pipelines", {}).items()}
        except (LookupError, TypeError, ValueError, AttributeError):
            return {}
