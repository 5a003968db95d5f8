"""Opens the receivers that the configuration names, and hands each commit of a pipeline to them."""

import time
from collections.abc import Callable, Iterable
from datetime import timedelta
from functools import partial

from writer.config.pipelines import Config
from writer.core.errors import ConfigError
from writer.status.model import Commit
from writer.status.progress import Progress
from writer.telemetry import batch_trace, lineage_events
from writer.telemetry.bounded_sender import BoundedSender

Send = Callable[[Commit], None]


class Receivers:
    """The receivers of a driver's pipelines, a sender for each pipeline; none where none is configured."""

    def __init__(self, config: Config, pipelines: Iterable[Progress]) -> None:
        """Follow the commits of pipelines. Raises ConfigError when a receiver's package is not installed."""
        self._senders: list[BoundedSender] = []
        for progress in pipelines:
            openers = _openers(config, progress.pipeline)
            mine = [
                BoundedSender(receiver, progress.pipeline, _opened(receiver, opener), progress.telemetry)
                for receiver, opener in openers.items()
            ]
            self._senders += mine
            if mine:
                progress.on_commit(partial(_committed, progress, mine))

    def close(self, within: timedelta) -> None:
        """Send what waits, for that long at most, all together."""
        deadline_s = time.monotonic() + within.total_seconds()
        for sender in self._senders:
            sender.finish()
        for sender in self._senders:
            sender.close(timedelta(seconds=max(0.0, deadline_s - time.monotonic())))


def _committed(progress: Progress, senders: Iterable[BoundedSender]) -> None:
    commit = progress.view().commits[0]
    for sender in senders:
        sender.put(commit)


def _openers(config: Config, pipeline: str) -> dict[str, Callable[[], Send]]:
    found: dict[str, Callable[[], Send]] = {}
    if config.openlineage.url is not None:
        found["openlineage"] = partial(lineage_events.sender, config.openlineage, config, pipeline)
    if config.opentelemetry.url is not None:
        found["opentelemetry"] = partial(batch_trace.sender, config.opentelemetry, pipeline)
    return found


def _opened(receiver: str, opener: Callable[[], Send]) -> Send:
    try:
        return opener()
    except ImportError as error:
        raise ConfigError(
            f"{receiver}.url is set, and {error.name} is not installed: pip install 'headrace[{receiver}]'"
        ) from error
