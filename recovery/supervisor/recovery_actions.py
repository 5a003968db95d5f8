"""What carries out the levels that are more than a start, and the look that a supervisor takes before each start."""

from collections.abc import Callable, Mapping
from datetime import UTC, datetime
from typing import assert_never

from recovery.checkpoints.checks import leads_to, preflight
from recovery.checkpoints.facts import newest_frontier, of_pipeline
from recovery.checkpoints.repair import NoRepair, RepairResult, repair
from recovery.checkpoints.walk_back import NotRebuilt, RebuiltOffsets, walk_back
from recovery.escalation.error_catalogue import Verdict
from recovery.escalation.levels import RecoveryLevel
from writer.clients.kafka import Cluster
from writer.config.pipelines import Config
from writer.core.errors import HeadraceError
from writer.offsets import skip_to_latest
from writer.offsets.spark_checkpoint import Checkpoints
from writer.table.factory import main_table


class Refusal(Exception):
    """A level cannot be carried out here. Its message says why."""


Action = Callable[[str], str]  # pipeline → what was done; raises Refusal


def cluster(config: Config) -> Cluster:
    """Return the cluster that a configuration names."""
    return Cluster(config.kafka.address, config.kafka.request_timeout)


def actions(config: Config, kafka: Callable[[Config], Cluster] = cluster) -> Mapping[RecoveryLevel, Action]:
    """Return the hands that there are. Nothing may be running of the pipeline that they are given."""
    return {
        RecoveryLevel.REPAIR: lambda name: _fix(config, name),
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
    return Verdict(f"preflight {worst.name}", level, halt=False, said=f"Before the start: {worst.said}.")


def _fix(config: Config, name: str) -> str:
    checkpoints = Checkpoints(config.checkpoints, name, config.s3.settings)
    with _refusing():
        run, table = checkpoints.newest(), main_table(name, config)
        if run is None:
            raise Refusal("there is no checkpoint to be repaired")
        frontier = newest_frontier(table.snapshot(), config.pipelines[name].topics) if table.exists() else None
        match repair(checkpoints, run, frontier, datetime.now(UTC), config.s3.settings):
            case RepairResult(run, removed, copy):
                return f"took {', '.join(removed)} out of run {run}; a copy is {copy}"
            case NoRepair(reason):
                raise Refusal(reason)
            case other:
                assert_never(other)


def _walk(config: Config, name: str, kafka: Cluster) -> str:
    with _refusing():
        match walk_back(config, name, kafka):
            case RebuiltOffsets(offsets, place, _):
                return f"the frontier of {len(offsets)} partitions was put together again; {place} agrees with it"
            case NotRebuilt(reason):
                raise Refusal(reason)
            case other:
                assert_never(other)


def _skip(config: Config, name: str, kafka: Cluster) -> str:
    """Skip what Kafka lost and what comes after, up to the ends of its logs; never a frontier that it still holds."""
    with _refusing():
        found, now = skip_to_latest.look(config, name, kafka, "automatic"), datetime.now(UTC)
        done = skip_to_latest.skip(
            config, name, found, by="headrace supervisor", reason="no other level is left", now=now
        )
        if done is None:
            raise Refusal("everything that Kafka holds is in the table; there is nothing to be skipped")
        version, gap = done
        return f"version {version} of the table records gap {gap.id} with {gap.offsets} offsets"


class _refusing:  # noqa: N801 - reads as a word of the with statement
    """Turn what a storage or broker could not answer into a refusal."""

    def __enter__(self) -> None:
        """Begin."""

    def __exit__(self, _kind: object, error: BaseException | None, _trace: object) -> None:
        """Refuse."""
        if isinstance(error, OSError | HeadraceError):
            raise Refusal(str(error)) from error
