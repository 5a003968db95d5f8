"""Fetches the facts of a tick: from the driver, from Kafka, from the supervisor; from the lake where no driver answers.

Whoever does not answer makes facts missing or old. Nothing here raises for it, and nothing decides.
"""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from datetime import datetime, timedelta
from typing import Any

from autoscaler.decision.facts import Facts
from autoscaler.decision.policy import Policy
from autoscaler.runtime import status_parser
from autoscaler.runtime.status_parser import Known
from writer.clients.driver_endpoint import Driver, announced, status_at
from writer.clients.kafka import Cluster
from writer.config.pipelines import Config
from writer.core import logging
from writer.core.errors import HeadraceError
from writer.status import from_table
from writer.status.document import document

_KAFKA_WITHIN = timedelta(seconds=5)
_WINDOWS_KEPT = 6  # of window_s, where batches come seldom


class Live:
    """The running application of a configuration."""

    def __init__(self, config: Config, names: Sequence[str], policy: Policy) -> None:
        self._config, self._names, self._policy = config, tuple(names), policy
        self._cluster = Cluster(config.kafka.address, min(config.kafka.request_timeout, _KAFKA_WITHIN))
        self._known: dict[str, Known] = {name: Known() for name in names}
        self._told: dict[str, Any] = {}  # name → what was said last, by whoever
        self._troubles: dict[str, str] = {}
        self.driver: Driver | None = None  # who answered last
        self.executors: Mapping[str, Any] | None = None  # what it said of them

    def look(self, now: datetime) -> Facts:
        """Ask everybody. Takes some seconds at most."""
        whole = self._ask_driver()
        self.executors = None if whole is None else whole.get("executors")
        levels = self._recovery_levels()
        found = []
        for name in self._names:
            self._listen(name, now)
            told = self._status(name, whole, now)
            if told is None:
                continue
            known = self._known[name] = status_parser.moved(self._known[name], told)
            heard_at = known.heard.samples[-1][0] if known.heard.samples else None
            found.append(
                status_parser.pipeline(
                    name, told, known, self._policy, now, recovery_level=levels.get(name, 0),
                    topics_heard_s=None if heard_at is None else (now - heard_at).total_seconds(),
                )
            )  # fmt: skip
        return Facts(now, status_parser.executors(self.executors, self._policy), tuple(found))

    def _ask_driver(self) -> dict[str, Any] | None:
        """Return the whole `/status` of the driver that has these pipelines; None when it does not answer."""
        for name in self._names:
            driver = announced(self._config.checkpoints, name, self._config.s3.settings)
            whole = None if driver is None else status_at(driver.url, driver.certificate)
            try:
                answers = whole is not None and driver is not None and whole["pipelines"][name]["epoch"] == driver.epoch
            except (LookupError, TypeError):
                answers = False
            if answers:
                self.driver = driver
                return whole
        self.driver = None
        return None

    def _status(self, name: str, whole: Mapping[str, Any] | None, now: datetime) -> dict[str, Any] | None:
        """Return a pipeline's part of `/status`: the driver's, else what the lake says, else what was said last."""
        if whole is not None and name in whole["pipelines"]:
            self._told[name] = {**whole["pipelines"][name], "at": whole["at"]}
        else:
            view = from_table.view(name, self._config, self._cluster, now)
            said = document([view], now, source="lake")
            if view.state != "unreadable":
                self._told[name] = {**said["pipelines"][name], "at": said["at"]}
        return self._told.get(name)

    def _listen(self, name: str, now: datetime) -> None:
        """Ask Kafka for the ends of a pipeline's logs; the first time, also for those of a while ago."""
        known, policy = self._known[name], self._policy
        try:
            sources = self._cluster.sources(self._config.pipelines[name].topics)
            if not known.heard.samples:
                for ago in (policy.window_s, policy.lately_s):
                    at = now - timedelta(seconds=ago)
                    known = _with_answer(known, at, self._cluster.at(at, sources), policy)
            known = _with_answer(known, now, self._cluster.latest(sources), policy)
        except HeadraceError as error:
            self._trouble(name, str(error))
            return
        self._trouble(name, "")
        self._known[name] = known

    def _recovery_levels(self) -> dict[str, int]:
        """Return on which rung recovery is, by pipeline, where a supervisor answers."""
        at, certificate = self._config.supervisor, self._config.http.certificate
        scheme = "http" if certificate is None else "https"
        told = status_at(f"{scheme}://{at.host}:{at.port}", str(certificate or "")) if at.port else None
        try:
            return {name: int(one["level"]) for name, one in (told or {}).get("pipelines", {}).items()}
        except (LookupError, TypeError, ValueError, AttributeError):
            return {}

    def _trouble(self, name: str, words: str) -> None:
        """Say once that Kafka does not answer."""
        if words and words != self._troubles.get(name):
            logging.warning("lag_source_failed", pipeline=name, error=words)
        self._troubles[name] = words


def _with_answer(known: Known, at: datetime, ends: Mapping[status_parser.Source, int], policy: Policy) -> Known:
    return replace(known, heard=known.heard.with_sample(at, ends, policy.window_s * _WINDOWS_KEPT))
