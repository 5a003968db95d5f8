"""Checks before a decision whether a table's committed offsets are known and Kafka still holds them."""

from recovery.checkpoints.facts import newest_frontier
from recovery.escalation.decide import Frontier
from writer.clients.kafka import BrokerUnreachable, Cluster, choose_topics
from writer.config.pipelines import Config
from writer.core.errors import HeadraceError
from writer.table.factory import main_table
from writer.table.log.foreign_writes import CommitFailed


class FrontierUnknown(Exception):
    """Storage or broker do not answer."""


def lease(config: Config, pipeline: str) -> int:
    """Return the newest lease that the table knows: leases that were removed go on above it. Raises OSError."""
    try:
        table = main_table(pipeline, config)
        return table.snapshot().lease if table.exists() else 0
    except CommitFailed as error:
        raise OSError(str(error)) from error
    except (ValueError, KeyError, TypeError, HeadraceError):
        return 0  # a table that cannot be read refuses a start by itself


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
    known, selection = snapshot.incarnations(), config.pipelines[pipeline].topics
    wanted = selection.among(known)
    parts = newest_frontier(snapshot, wanted)
    if any(known.get(topic) and topic not in {t for t, _ in parts} for topic in wanted):
        return Frontier.UNKNOWN
    cluster = Cluster(config.kafka.address, config.kafka.request_timeout)
    try:
        topics = cluster.topics(choose_topics(cluster, selection, known).names)
        same = {t.name for t in topics.values() if known.get(t.name) and t.id == known[t.name][-1]}
        at = {(topic, partition): offset for (topic, partition), offset in parts.items() if topic in same}
        earliest = cluster.earliest(at)
    except BrokerUnreachable as error:
        raise FrontierUnknown(str(error)) from error
    except HeadraceError:
        return Frontier.HELD
    return Frontier.LOST if any(offset > at[source] for source, offset in earliest.items()) else Frontier.HELD
