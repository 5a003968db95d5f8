"""Carries out recovery levels beyond a restart, and the checks before each start."""

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from datetime import UTC, datetime

from headrace.recovery.checkpoints.checks import leads_to, preflight
from headrace.recovery.checkpoints.facts import collect_pipeline_facts
from headrace.recovery.checkpoints.walk_back import NotRebuilt, walk_back
from headrace.recovery.escalation.error_catalogue import Verdict
from headrace.recovery.escalation.levels import RecoveryLevel
from headrace.writer.clients.kafka import Cluster
from headrace.writer.clients.spark_login import find_missing_credentials
from headrace.writer.config.pipelines import Config
from headrace.writer.core.errors import HeadraceError
from headrace.writer.offsets import skip_to_latest


class Refusal(Exception):
    """A level that cannot be carried out here. Its message has the reason."""


# Pipeline → what was done; raises Refusal.
Action = Callable[[str], str]


def open_cluster(config: Config) -> Cluster:
    """Return the cluster that a configuration names."""
    return Cluster(config.kafka.address, config.kafka.request_timeout)


def actions(config: Config, cluster: Callable[[Config], Cluster] = open_cluster) -> Mapping[RecoveryLevel, Action]:
    """Return the available recovery actions. The pipeline must not be running when one is called."""
    return {
        RecoveryLevel.WALK_BACK: lambda name: _walk_back(config, name, cluster(config)),
        RecoveryLevel.LATEST: lambda name: _skip_to_latest(config, name, cluster(config)),
    }


def check_before_start(config: Config, pipeline: str) -> Verdict | None:
    """Check the login, checkpoint, table and Kafka before a start; None when nothing speaks against it.

    What only a person can repair is left to the start, which says it in its own words. Raises StoreError.
    """
    missing_credentials = find_missing_credentials(config.kafka.security)
    if missing_credentials:
        message = f"Before the start: {missing_credentials}"
        return Verdict("preflight login", RecoveryLevel.WAIT, halt=False, message=message)
    checks = preflight(collect_pipeline_facts(config, pipeline).facts)
    level = leads_to(checks)
    if level is None or level == RecoveryLevel.RESTART:
        return None
    worst = next(check for check in checks if check.ok is False and check.level == level)
    return Verdict(f"preflight {worst.name}", level, halt=False, message=f"Before the start: {worst.message}.")


@contextmanager
def _refuse_unanswered() -> Iterator[None]:
    """Turn what a storage or broker could not answer into a refusal."""
    try:
        yield
    except (OSError, HeadraceError) as error:
        raise Refusal(str(error)) from error


@_refuse_unanswered()
def _walk_back(config: Config, name: str, cluster: Cluster) -> str:
    result = walk_back(config, name, cluster)
    if isinstance(result, NotRebuilt):
        raise Refusal(result.reason)
    return f"the frontier of {len(result.offsets)} partitions was put together again; {result.location} agrees with it"


@_refuse_unanswered()
def _skip_to_latest(config: Config, name: str, cluster: Cluster) -> str:
    """Skip what Kafka lost and what comes after, up to the ends of its logs; never a frontier that it still holds."""
    plan = skip_to_latest.preview_skip(config, name, cluster, "automatic")
    # After the ends of the logs were read: no record before them is of later than now.
    now = datetime.now(UTC)
    skip = skip_to_latest.skip(config, name, plan, by="headrace supervisor", reason="no other level is left", now=now)
    if skip is None:
        raise Refusal("everything that Kafka holds is in the table; there is nothing to be skipped")
    version, gap = skip
    return f"version {version} of the table records gap {gap.id} with {gap.offsets} offsets"
