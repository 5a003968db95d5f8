"""Opens the receivers that the configuration names, and hands each commit of a pipeline to them."""

from collections.abc import Callable
from datetime import timedelta

from writer.config.pipelines import Config
from writer.core.errors import ConfigError
from writer.status.model import Commit
from writer.status.progress import Progress
from writer.telemetry import batch_trace, lineage_events
from writer.telemetry.bounded_sender import BoundedSender


class Receivers:
    """The receivers of one pipeline; none where none is configured."""

    def __init__(self, config: Config, progress: Progress) -> None:
        """Follow the commits of a pipeline. Raises ConfigError when a receiver's package is not installed."""
        name = progress.pipeline
        openers: dict[str, Callable[[], Callable[[Commit], None]]] = {}
        if config.openlineage.url is not None:
            openers["openlineage"] = lambda: lineage_events.sender(config.openlineage, config, name)
        if config.opentelemetry.url is not None:
            openers["opentelemetry"] = lambda: batch_trace.sender(config.opentelemetry, name)
        self._progress = progress
        self._senders = [
            BoundedSender(receiver, name, _opened(receiver, opener), progress.telemetry)
            for receiver, opener in openers.items()
        ]
        if self._senders:
            progress.on_commit(self._committed)

    def close(self, within: timedelta) -> None:
        """Send what waits, for that long at most."""
        for sender in self._senders:
            sender.close(within)

    def _committed(self) -> None:
        commit = self._progress.view().commits[0]
        for sender in self._senders:
            sender.put(commit)


def _opened(receiver: str, opener: Callable[[], Callable[[Commit], None]]) -> Callable[[Commit], None]:
    try:
        return opener()
    except ImportError as error:
        raise ConfigError(
            f"{receiver}.url is set, and {error.name} is not installed: pip install 'headrace[{receiver}]'"
        ) from error
