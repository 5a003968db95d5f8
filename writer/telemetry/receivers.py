"""Opens the receivers that the configuration names, and hands each commit of a pipeline to them."""

import time
from collections.abc import Callable, Iterable
from datetime import timedelta
from functools import partial

from writer.config.pipeline import Pipeline
from writer.config.pipelines import Config
from writer.core.errors import ConfigError
from writer.status.model import Commit
from writer.status.progress import Progress
from writer.telemetry import batch_trace, lineage_events
from writer.telemetry.bounded_sender import BoundedSender

Send = Callable[[Commit], None]
# How long to send what waits of a pipeline whose configuration changed, or that was taken out.
_SEND_TIMEOUT = timedelta(seconds=2)


class Receivers:
    """The receivers of a driver's pipelines, a sender for each pipeline; none where none is configured."""

    def __init__(self) -> None:
        self._senders = dict[str, list[BoundedSender]]()
        self._settings = dict[str, Pipeline]()

    def follow(self, config: Config, progress: Progress) -> None:
        """Follow the commits of a pipeline, as it is configured now. Raises ConfigError when a package is missing."""
        name = progress.pipeline
        before = self._settings.get(name)
        self._settings[name] = config.pipelines[name]
        if before == config.pipelines[name]:
            return
        if name in self._senders:
            _close(self._senders[name], _SEND_TIMEOUT)
        elif before is None:
            progress.on_commit(partial(self._send_commit, progress))
        self._senders[name] = [
            BoundedSender(receiver, name, _open_receiver(receiver, opener), progress.set_telemetry)
            for receiver, opener in _openers(config, name).items()
        ]

    def forget(self, pipeline: str) -> None:
        """Send what waits of a pipeline that is taken out, and follow it no more."""
        self._settings.pop(pipeline, None)
        _close(self._senders.pop(pipeline, []), _SEND_TIMEOUT)

    def close(self, within: timedelta) -> None:
        """Send what waits, for that long at most, all together."""
        _close([sender for senders in self._senders.values() for sender in senders], within)

    def _send_commit(self, progress: Progress) -> None:
        commit = progress.view().commits[0]
        for sender in self._senders.get(progress.pipeline, []):
            sender.put(commit)


def _close(senders: Iterable[BoundedSender], within: timedelta) -> None:
    closing = list(senders)
    deadline_s = time.monotonic() + within.total_seconds()
    for sender in closing:
        sender.finish()
    for sender in closing:
        sender.close(timedelta(seconds=max(0.0, deadline_s - time.monotonic())))


def _openers(config: Config, pipeline: str) -> dict[str, Callable[[], Send]]:
    openers: dict[str, Callable[[], Send]] = {}
    if config.openlineage.url is not None:
        openers["openlineage"] = partial(lineage_events.sender, config.openlineage, config, pipeline)
    if config.opentelemetry.url is not None:
        openers["opentelemetry"] = partial(batch_trace.sender, config.opentelemetry, pipeline)
    return openers


def _open_receiver(receiver: str, opener: Callable[[], Send]) -> Send:
    try:
        return opener()
    except ImportError as error:
        raise ConfigError(
            f"{receiver}.url is set, and {error.name} is not installed: pip install 'headrace[{receiver}]'"
        ) from error
