"""What the supervisor takes from the configuration: its policy, its timeouts, and where it stores its memory."""

from collections.abc import Iterable
from datetime import timedelta

from headrace.recovery.escalation.decide import Policy
from headrace.recovery.escalation.diagnosis import Timeouts, stall_timeout
from headrace.recovery.escalation.levels import RecoveryLevel
from headrace.recovery.escalation.state import Memory, clear_halt, read
from headrace.writer.config.pipelines import Config
from headrace.writer.core import logging
from headrace.writer.lease.factory import pipeline_store
from headrace.writer.table.log.appender import RETRY_TIMEOUT

_ANSWER_WITHIN = timedelta(seconds=5)
# A batch that is not cancelled may have four tables to commit to: its own, and those of dead letters, late rows and raw
# records. Spark stops in the time of a fifth.
_COMMITS = 5


def policy(config: Config, actions: Iterable[RecoveryLevel]) -> Policy:
    """Return what recovery may do."""
    settings = config.supervisor
    return Policy(
        actions=frozenset({RecoveryLevel.WAIT, RecoveryLevel.RESTART, RecoveryLevel.NEW_RUN, *actions}),
        latest_allowed=settings.allow_skip_to_latest,
        healthy_after=settings.healthy_after,
    )


def timeouts(config: Config) -> Timeouts:
    """Return how long a driver and its pipelines may be silent."""
    settings = config.supervisor
    stalled_after = {
        name: stall_timeout(settings.stalled_after, pipeline.commit.max_delay)
        for name, pipeline in config.pipelines.items()
    }
    return Timeouts(settings.start_within, settings.heartbeat_within, stalled_after)


def drain_timeout(config: Config) -> timedelta:
    """Return how long a driver may take to end: it finishes or cancels its batch, and ends a commit that has begun."""
    return config.stop_timeout + _COMMITS * RETRY_TIMEOUT


def with_short_timeouts(config: Config) -> Config:
    """Return the configuration with short timeouts for storage and brokers: the supervisor looks again soon."""
    stores = {
        name: section.model_copy(update={"retry_timeout": min(section.retry_timeout, _ANSWER_WITHIN)})
        for name, section in (("s3", config.s3), ("gcs", config.gcs), ("azure", config.azure))
    }
    kafka = config.kafka.model_copy(update={"request_timeout": min(config.kafka.request_timeout, _ANSWER_WITHIN)})
    return config.model_copy(update={**stores, "kafka": kafka})


def read_memory(config: Config, pipeline: str) -> Memory:
    """Read what the last supervisor of a pipeline left, without its halt; an empty memory if it cannot be read."""
    try:
        return clear_halt(read(pipeline_store(config, pipeline)))
    except OSError as error:
        logging.warning("supervisor_state_unreadable", pipeline=pipeline, error=str(error))
        return Memory()
