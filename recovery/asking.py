"""How a pipeline's table stands to Kafka, asked before the ladder decides: is the frontier known, is it still held?"""

from datetime import timedelta

from recovery.ladder import Frontier
from writer.config import Config
from writer.errors import HeadraceError
from writer.frontier import number
from writer.kafka import BrokerUnreachable, Cluster
from writer.tables.base import CommitFailed
from writer.tables.formats import main_table

_KAFKA_WITHIN = timedelta(seconds=5)  # the supervisor has other things to do


class Silent(Exception):
    """Storage or broker do not answer."""


def frontier(config: Config, pipeline: str) -> Frontier:
    """Hold the table's frontier against Kafka. Raises Silent.

    What only a start can say, such as a topic that is gone, is left to the start.
    """
    try:
        table = main_table(pipeline, config)
        if not table.exists():
            return Frontier.HELD
        snapshot = table.snapshot()
    except (OSError, CommitFailed) as error:
        raise Silent(str(error)) from error
    except HeadraceError:
        return Frontier.HELD
    except (ValueError, KeyError, TypeError):
        return Frontier.UNKNOWN
    parts = snapshot.parts()
    cluster = Cluster(config.kafka.bootstrap_servers, min(config.kafka.request_timeout, _KAFKA_WITHIN))
    try:
        topics = cluster.topics(config.pipelines[pipeline].topics)
        ids = snapshot.incarnations()
        now = {t.name: number(ids[t.name], t.id) for t in topics.values() if t.id in ids.get(t.name, [])}
        at = {(p.topic, p.partition): offset for p, offset in parts.items() if now.get(p.topic) == p.incarnation}
        earliest = cluster.earliest(at)
    except BrokerUnreachable as error:
        raise Silent(str(error)) from error
    except HeadraceError:
        return Frontier.HELD
    return Frontier.LOST if any(offset > at[source] for source, offset in earliest.items()) else Frontier.HELD
