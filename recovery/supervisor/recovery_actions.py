"""Carries out recovery levels beyond a restart, and the checks before each start."""

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from datetime import UTC, datetime

from recovery.checkpoints.checks import leads_to, preflight
from recovery.checkpoints.facts import of_pipeline
from recovery.checkpoints.walk_back import NotRebuilt, walk_back
from recovery.escalation.error_catalogue import Verdict
from recovery.escalation.levels import RecoveryLevel
from writer.clients.kafka import Cluster
from writer.config.pipelines import Config
from writer.core.errors import HeadraceError
from writer.offsets import skip_to_latest


class Refusal(Exception):
    """A level that cannot be carried out here. Its message has the reason."""


Action = Callable[[str], str]  # pipeline → what was done; raises Refusal


def cluster(config: Config) -> Cluster:
    """Return the cluster that a configuration names."""
    return Cluster(config.kafka.address, config.kafka.request_timeout)


def actions(config: Config, kafka: Callable[[Config], Cluster] = cluster) -> Mapping[RecoveryLevel, Action]:
    """Return the available recovery actions. The pipeline must not be running when one is called."""
    return {
        RecoveryLevel.WALK_BACK: lambda name: _walk(config, name, kafka(config)),
        RecoveryLevel.LATEST: lambda name: _skip(config, name, kafka(config)),
    }


def found_before(config: Config, pipeline: str) -> Verdict | None:
    """Look at checkpoint, table and Kafka before a start; None when nothing speaks against it.

    What only a person can repair is left to the start, which says it in its own words. Raises StoreError.
    """
    checks = preflight(of_pipeline(config, pipeline).facts)
    level = leads_to(checks)
    if level is None or level == RecoveryLevel.RESTART:
        return None
    worst = next(check for check in checks if check.ok is False and check.level == level)
    return Verdict(f"preflight {worst.name}", level, halt=False, message=f"Before the start: {worst.message}.")


@contextmanager
def _refusing() -> Iterator[None]:
    """Turn what a storage or broker could not answer into a refusal."""
    try:
        yield
    except (OSError, HeadraceError) as error:
        raise Refusal(str(error)) from error


@_refusing()
def _walk(config: Config, name: str, kafka: Cluster) -> str:
    done = walk_back(config, name, kafka)
    if isinstance(done, NotRebuilt):
        raise Refusal(done.reason)
    return f"the frontier of {len(done.offsets)} partitions was put together again; {done.place} agrees with it"


@_refusing()
def _skip(config: Config, name: str, kafka: Cluster) -> str:
    """Skip what Kafka lost and what comes after, up to the ends of its logs; never a frontier that it still holds."""
    found, now = skip_to_latest.look(config, name, kafka, "automatic"), datetime.now(UTC)
    done = skip_to_latest.skip(config, name, found, by="headrace supervisor", reason="no other level is left", now=now)
    if done is None:
        raise Refusal("everything that Kafka holds is in the table; there is nothing to be skipped")
    version, gap = done
    return f"version {version} of the table records gap {gap.id} with {gap.offsets} offsets"
