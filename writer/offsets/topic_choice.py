"""Which topics a start of a pipeline reads, and which of the start before are not there any more."""

from collections.abc import Callable, Mapping
from datetime import UTC, datetime

from writer.clients import notifications
from writer.clients.kafka import Cluster, choose_topics
from writer.config.topic_selection import TopicSelection
from writer.core import logging
from writer.core.errors import ConfigError
from writer.core.text import listed, plural
from writer.table.table import PipelineTable

_SHOWN = 3  # topics that a sentence names
Notify = Callable[[notifications.Event], None]


def topics_of_start(
    selection: TopicSelection, cluster: Cluster, table: PipelineTable, before: Mapping[str, int], notify: Notify
) -> list[str]:
    """Choose the topics to read; where more match than `max`, those that the table knows stay, and others wait.

    `before`: topic → offsets that waited, of the start before in this process; those that are gone are reported.
    Raises ConfigError where a first start would leave some out, TopicMissing, BrokerUnreachable,
    CommitFailed.
    """
    pipeline, known = table.pipeline, table.snapshot().incarnations() if table.exists() else {}
    names, beyond = choose_topics(cluster, selection, known)
    cluster.topics(names)
    for topic in sorted(before.keys() - set(names)):
        logging.warning("topic_gone", pipeline=pipeline, topic=topic, unread=before[topic])
        notify(notifications.topic_gone(pipeline, topic, before[topic], datetime.now(UTC)))
    if beyond:
        what = f"{plural(len(beyond), 'topic')} more than topics.max {selection.max}: {listed(beyond, _SHOWN)}"
        fix = "Raise topics.max, or narrow the pattern."
        if not known:
            raise ConfigError(f"topics.pattern {selection.pattern!r} matches {what}. {fix}")
        logging.warning("topics_beyond_max", pipeline=pipeline, topics=len(beyond), max=selection.max, first=beyond[0])
        notify(notifications.topics_beyond_max(pipeline, beyond, f"{what} are not read. {fix}", datetime.now(UTC)))
    return names
