"""Notifications of recovery: the two highest levels, gaps, lost leases, halted pipelines.

    notifier = open_notifier(config.notifications)
    notifier.send(level_event(name, RecoveryLevel.LATEST, finding, time=now))
    notifier.close(timedelta(seconds=5))  # before the process ends

Drivers themselves notify of missing offsets, gaps of retention and topics that were created again.
"""

from datetime import datetime

from headrace.recovery.escalation.levels import RecoveryLevel
from headrace.writer.clients.notifications import Event
from headrace.writer.lease.holder import LeaseLoss


def level_event(pipeline: str, level: RecoveryLevel, finding: str, *, time: datetime) -> Event | None:
    """Notify of a level that people should know of; None for the levels that lose nothing and guess nothing.

    `finding`: what led there, as a sentence.
    """
    about = {"level": level.label}
    match level:
        case RecoveryLevel.WALK_BACK:
            text = f"{level.label}: the table's frontier is not known; it is rebuilt from an older checkpoint."
            return Event("offsets_rebuilt", "critical", pipeline, f"{text} {finding}", time, about)
        case RecoveryLevel.LATEST:
            text = f"{level.label}: skipped to the end of Kafka's log; what lies between is a gap."
            return Event("skipped_to_latest", "critical", pipeline, f"{text} {finding}", time, about)
        case RecoveryLevel.WAIT | RecoveryLevel.RESTART | RecoveryLevel.NEW_RUN:
            return None


def halt_event(pipeline: str, reason: str, *, time: datetime) -> Event:
    """Notify that nothing more is tried: a person must act."""
    text = f"given up, nothing is written any more. {reason}"
    return Event("pipeline_halted", "critical", pipeline, text, time, {})


def lease_loss_event(loss: LeaseLoss, *, time: datetime) -> Event:
    """Notify that another process took a pipeline over: this one may have been paused, or two were started."""
    taker = loss.holder or "another process"
    text = (
        f"{taker} took the lease; this supervisor ends the pipeline, and goes on by itself when that process has "
        "ended. Was it started on purpose? Or was this machine paused, or cut off?"
    )
    return Event("lease_lost", "critical", loss.pipeline, text, time, {"holder": loss.holder})
