"""Which topics a start of a pipeline reads, and which of the start before are not there any more."""

from collections.abc import Callable, Sequence
from datetime import UTC, datetime

from writer.clients import notifications
from writer.clients.kafka import Cluster, choose_topics
from writer.config.topic_selection import TopicSelection
from writer.core import logging
from writer.core.errors import ConfigError
from writer.core.text import join_first, plural
from writer.status.progress import Progress
from writer.table.table import PipelineTable

_FIX = "Raise topics.max, or narrow the pattern."
_SHOWN = 3  # topics that a sentence names
Notify = Callable[[notifications.Event], None]


def topics_of_start(
    selection: TopicSelection, cluster: Cluster, table: PipelineTable, progress: Progress, notify: Notify
) -> list[str]:
    """Choose the topics to read; where more match than `max`, those that were read stay, and others wait.

    `progress`: of this process; topics of its start before that are gone are reported. Raises ConfigError where a first
    start would leave some out, TopicMissing, BrokerUnreachable, CommitFailed.
    """
    pipeline, before, known = table.pipeline, progress.view().unread, list[str]()
    if selection.pattern is not None and table.exists():
        known = list(table.snapshot().incarnations())
    names, beyond = choose_topics(cluster, selection, [*before, *known])
    cluster.topics(names)
    for topic in sorted(before.keys() - {*names, *beyond}):
        logging.warning("topic_gone", pipeline=pipeline, topic=topic, unread=before[topic])
        notify(notifications.topic_deletion(pipeline, topic, before[topic], datetime.now(UTC)))
    if beyond and not known:
        raise ConfigError(f"topics.pattern {selection.pattern!r} matches {_beyond(selection, beyond)}. {_FIX}")
    report_beyond(selection, beyond, progress, notify)
    return names


def report_beyond(selection: TopicSelection, beyond: Sequence[str], progress: Progress, notify: Notify) -> None:
    """Report the topics that are not read because there are more than `max`, once until they are others."""
    if not progress.beyond(tuple(beyond)) or not beyond:
        return
    pipeline, what = progress.pipeline, _beyond(selection, beyond)
    logging.warning("topics_beyond_max", pipeline=pipeline, topics=len(beyond), max=selection.max, first=beyond[0])
    notify(notifications.topics_beyond_max(pipeline, list(beyond), f"{what} are not read. {_FIX}", datetime.now(UTC)))


def _beyond(selection: TopicSelection, beyond: Sequence[str]) -> str:
    return f"{plural(len(beyond), 'topic')} more than topics.max {selection.max}: {join_first(beyond, _SHOWN)}"
