"""Checks before a decision whether a table's committed offsets are known and Kafka still holds them."""

from headrace.recovery.checkpoints.facts import newest_frontier
from headrace.recovery.escalation.decide import Frontier
from headrace.writer.clients.kafka import BrokerUnreachable, Cluster, choose_topics
from headrace.writer.config.pipelines import Config
from headrace.writer.core.errors import HeadraceError
from headrace.writer.table.factory import main_table
from headrace.writer.table.log.foreign_writes import CommitFailed


class FrontierUnknown(Exception):
    """Storage or broker do not answer."""


def frontier(config: Config, pipeline: str) -> Frontier:
    """Compare the table's frontier with Kafka. Raises FrontierUnknown.

    What only a start can say, such as a topic that is gone, is left to the start.
    """
    try:
        table = main_table(pipeline, config)
        if not table.exists():
            return Frontier.HELD
        snapshot = table.snapshot()
    except (OSError, CommitFailed) as error:
        raise FrontierUnknown(str(error)) from error
    except HeadraceError:
        return Frontier.HELD
    except (ValueError, KeyError, TypeError):
        return Frontier.UNKNOWN
    incarnations = snapshot.incarnations()
    selection = config.pipelines[pipeline].topics
    selected_topics = selection.among(incarnations)
    offsets = newest_frontier(snapshot, selected_topics)
    topics_with_offsets = {topic for topic, _ in offsets}
    if any(incarnations.get(topic) and topic not in topics_with_offsets for topic in selected_topics):
        return Frontier.UNKNOWN
    cluster = Cluster(config.kafka.address, config.kafka.request_timeout)
    try:
        topics = cluster.topics(choose_topics(cluster, selection, incarnations).names).values()
        unchanged = {
            topic.name for topic in topics if incarnations.get(topic.name) and topic.id == incarnations[topic.name][-1]
        }
        committed = {source: offset for source, offset in offsets.items() if source[0] in unchanged}
        earliest = cluster.earliest(committed)
    except BrokerUnreachable as error:
        raise FrontierUnknown(str(error)) from error
    except HeadraceError:
        return Frontier.HELD
    if any(offset > committed[source] for source, offset in earliest.items()):
        return Frontier.LOST
    return Frontier.HELD
