"""Which topics a start of a pipeline reads, and which of the start before are not there any more."""

from collections.abc import Callable, Sequence
from datetime import UTC, datetime

from headrace.writer.clients import notifications
from headrace.writer.clients.kafka import Cluster, choose_topics
from headrace.writer.config.sections.topic_selection import TopicSelection
from headrace.writer.core import logging
from headrace.writer.core.errors import ConfigError
from headrace.writer.core.text import join_first, plural
from headrace.writer.status.progress import Progress
from headrace.writer.table.table import PipelineTable

_FIX = "Raise topics.max, or narrow the pattern."
# A sentence names so many topics.
_NAMES_MAX = 3
Notify = Callable[[notifications.Event], None]


def topics_of_start(
    selection: TopicSelection, cluster: Cluster, table: PipelineTable, progress: Progress, notify: Notify
) -> list[str]:
    """Choose the topics to read; where more match than `max`, those that were read stay, and others wait.

    `progress`: of this process; topics of its start before that are gone are reported. Raises ConfigError where a first
    start would leave some out, TopicMissing, BrokerUnreachable, CommitFailed.
    """
    pipeline = table.pipeline
    unread = progress.view().unread
    table_topics = list[str]()
    if selection.pattern is not None and table.exists():
        table_topics = list(table.snapshot().incarnations())
    names, beyond = choose_topics(cluster, selection, [*unread, *table_topics])
    cluster.topics(names)
    for topic in sorted(unread.keys() - {*names, *beyond}):
        logging.warning("topic_gone", pipeline=pipeline, topic=topic, unread=unread[topic])
        notify(notifications.topic_deletion(pipeline, topic, unread[topic], datetime.now(UTC)))
    if beyond and not table_topics:
        topics = _describe_topics_beyond(selection, beyond)
        raise ConfigError(f"topics.pattern {selection.pattern!r} matches {topics}. {_FIX}")
    report_beyond(selection, beyond, progress, notify)
    return names


def report_beyond(selection: TopicSelection, beyond: Sequence[str], progress: Progress, notify: Notify) -> None:
    """Report the topics that are not read because there are more than `max`, once until they are others."""
    if not progress.set_topics_beyond(tuple(beyond)) or not beyond:
        return
    pipeline = progress.pipeline
    text = f"{_describe_topics_beyond(selection, beyond)} are not read. {_FIX}"
    logging.warning("topics_beyond_max", pipeline=pipeline, topics=len(beyond), max=selection.max, first=beyond[0])
    notify(notifications.topics_beyond_max(pipeline, list(beyond), text, datetime.now(UTC)))


def _describe_topics_beyond(selection: TopicSelection, beyond: Sequence[str]) -> str:
    return f"{plural(len(beyond), 'topic')} more than topics.max {selection.max}: {join_first(beyond, _NAMES_MAX)}"
