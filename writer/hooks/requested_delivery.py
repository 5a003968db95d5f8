"""Delivers or skips sealed buckets at a person's request, beside the driver or without one."""

import time
from datetime import UTC, datetime, timedelta

from writer.config.base import did_you_mean
from writer.config.pipelines import Config
from writer.core.errors import ConfigError
from writer.core.files import BucketKey
from writer.hooks.delivery import HookDelivery
from writer.hooks.dispatcher import deliveries
from writer.hooks.outbox import OutboxContent, OutboxEntry

# Between two rounds, while servers work on what they accepted.
_ROUND_INTERVAL_S = 0.5


def choose_deliveries(config: Config, pipeline: str, hook: str | None) -> list[HookDelivery]:
    """Return the deliveries of a pipeline, or of one of its hooks. Raises ConfigError where there is none."""
    candidates = deliveries(pipeline, config)
    names = [delivery.hook.name for delivery in candidates]
    if not candidates:
        raise ConfigError(f"pipeline {pipeline!r} has no hooks; list them in pipelines.{pipeline}.hooks")
    if hook is not None and hook not in names:
        raise ConfigError(f"pipeline {pipeline!r} has no hook {hook!r}{did_you_mean(hook, names)}")
    return [delivery for delivery in candidates if hook in (None, delivery.hook.name)]


def deliver_pending(delivery: HookDelivery, bucket: BucketKey | None, timeout: timedelta) -> OutboxContent:
    """Run rounds until nothing waits, each attempt has failed, or the time is over. Returns the outbox.

    `bucket`: its newest manifest is delivered, also where it was delivered before. Raises OSError, HeadraceError.
    """
    deadline_s = time.monotonic() + timeout.total_seconds()
    delivery.take_up()
    if bucket is not None:
        delivery.redeliver(bucket)
    delivery.make_due()
    while True:
        content = delivery.run_round(datetime.now(UTC))
        is_done = delivery.next_due(content) is None
        has_failed = all(entry.error for entry in content.next_entries())
        if is_done or has_failed or time.monotonic() > deadline_s:
            return content
        time.sleep(_ROUND_INTERVAL_S)


def skip_bucket(delivery: HookDelivery, bucket: BucketKey) -> list[OutboxEntry]:
    """Take what waits of a bucket out of the outbox. Returns it. Raises OSError, HeadraceError."""
    delivery.take_up()
    skipped: list[OutboxEntry] = []

    def skip(content: OutboxContent | None) -> OutboxContent:
        content = content or OutboxContent(-1)
        # The change is tried again where another process was faster.
        skipped[:] = [entry for entry in content.pending if entry.bucket == bucket]
        return content.skip(skipped)

    delivery.outbox.change(skip)
    return skipped
