"""Collects the facts of an evaluation from driver, Kafka and supervisor, or from the lake without a driver.

Whoever does not answer makes facts missing or old. Nothing here raises for it, and nothing decides.
"""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from datetime import datetime, timedelta
from typing import Any

from autoscaler.decision.facts import Facts
from autoscaler.decision.policy import Policy
from autoscaler.runtime import status_parser
from writer.clients.driver_endpoint import Driver, driver_status, find_announcement, status_at
from writer.clients.kafka import Cluster
from writer.config.loader import ReloadableConfig
from writer.config.pipelines import Config
from writer.core import logging
from writer.core.errors import HeadraceError
from writer.core.text import iso
from writer.scaling.spark_settings import refusal
from writer.status import from_table
from writer.status.document import document
from writer.status.lag import lag_sample
from writer.status.lag_sample import LagSample

_KAFKA_WITHIN = timedelta(seconds=5)


class FactsCollector:
    """The running application of a configuration."""

    def __init__(
        self, config: Config, names: Sequence[str], policy: Policy, file: ReloadableConfig | None = None
    ) -> None:
        """`file`: where the pipelines are read again; without it they stay what they are."""
        self._config, self._names, self._policy, self._file = config, tuple(names), policy, file
        self._cluster = Cluster(config.kafka.address, min(config.kafka.request_timeout, _KAFKA_WITHIN))
        self._frontiers: dict[str, status_parser.Frontiers] = {}
        self._last_status: dict[str, dict[str, Any] | None] = {}  # name → what was said last, by the driver or the lake
        self._lags: dict[str, LagSample] = {}  # name → the newest sample, the driver's or of this process
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
        found = []
        for name in self._names:
            status = self._last_status[name] = self._status(name, whole, now) or self._last_status.get(name)
            if status is None:
                continue
            lag = self._lags.get(name, LagSample())
            if lag.at is not None and lag.at > now:
                # The wall clock stepped back since: from here on it grows old.
                lag = self._lags[name] = replace(lag, at=now)
            if datetime.fromisoformat(status["at"]) > now:
                status = self._last_status[name] = {**status, "at": iso(now)}
            frontiers = self._frontiers[name] = status_parser.moved(
                self._frontiers.get(name, {}), status["commits"], lag
            )
            level = levels.get(name, 0)
            found.append(status_parser.pipeline(name, status, lag, frontiers, self._policy, now, recovery_level=level))
        spark = self._config.spark  # as the driver was started, where it does not answer
        refused = refusal(spark.master, spark.conf) if self.executors is None else self.executors.get("refused")
        return Facts(now, status_parser.executors(self.executors, self._policy), tuple(found), refused)

    def _ask_driver(self) -> dict[str, Any] | None:
        """Return the whole `/status` of the driver that has these pipelines; None when it does not answer."""
        for name in self._names:
            driver = find_announcement(self._config.checkpoints, name, self._config.s3.settings)
            whole = None if driver is None else driver_status(driver, name)
            self.driver = None if whole is None else driver
            if whole is not None:
                return whole
        return None

    def _status(self, name: str, whole: Mapping[str, Any] | None, now: datetime) -> dict[str, Any] | None:
        """Return a pipeline's part of `/status`: the driver's, else the lake's; None if it is unreadable.

        The lag is the driver's too. Kafka is asked where no driver answers, or Kafka did not answer the driver.
        """
        if whole is None or name not in whole["pipelines"]:
            view = from_table.view(name, self._config, self._cluster, now)
            if view.state == "unreadable":
                return None
            self._keep_lag(name, lag_sample(view.logs, view.frontier, now), view.error)
            return {**document([view], now, source="lake")["pipelines"][name], "at": iso(now)}
        lag, at = LagSample.from_json(whole["pipelines"][name]["lag"]), datetime.fromisoformat(whole["at"])
        limit = timedelta(seconds=self._policy.facts_age_max_s)
        if lag.is_fresh(at) and lag.at is not None and at - lag.at <= limit:
            self._keep_lag(name, lag)
        else:
            self._ask_kafka(name, now)
        return {**whole["pipelines"][name], "at": whole["at"]}

    def _ask_kafka(self, name: str, now: datetime) -> None:
        """Measure the lag beside a driver whose own sample is old."""
        try:
            frontier, logs = from_table.logs_now(name, self._config, self._cluster, now)
        except (HeadraceError, OSError) as error:
            self._keep_lag(name, LagSample(), str(error))
        else:
            self._keep_lag(name, lag_sample(logs, frontier, now))

    def _keep_lag(self, name: str, lag: LagSample, trouble: str = "") -> None:
        """Keep a sample; without one, the last one grows old. Say once that Kafka does not answer."""
        words = "" if lag.at is not None else trouble
        if words and words != self._troubles.get(name):
            logging.warning("lag_measurement_failed", pipeline=name, error=words)
        self._troubles[name] = words
        if lag.at is not None:
            self._lags[name] = lag

    def _recovery_levels(self) -> dict[str, int]:
        """Return on which level recovery is, by pipeline, where a supervisor answers."""
        at, certificate = self._config.supervisor, self._config.http.certificate
        scheme = "http" if certificate is None else "https"
        status = status_at(f"{scheme}://{at.host}:{at.port}", str(certificate or "")) if at.port else None
        try:
            return {name: int(one["level"]) for name, one in (status or {}).get("pipelines", {}).items()}
        except (LookupError, TypeError, ValueError, AttributeError):
            return {}
