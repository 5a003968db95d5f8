"""A cluster whose ends the status asks for."""

from datetime import UTC, datetime, timedelta

from headrace.writer.clients.kafka import BrokerUnreachable, Topic

NOON = datetime(2026, 11, 20, 12, tzinfo=UTC)


A = ("clicks", 0)
B = ("clicks", 1)


class Cluster:
    """A cluster with one topic, whose records arrived one a second until noon."""

    def __init__(self, *, ends: int = 1_000, up: bool = True, topic_id: str = "uuid-1") -> None:
        self.ends = ends
        self.up = up
        self.topic_id = topic_id
        self.waits = 0  # questions that ended with the time-out

    def brokers(self):
        self._answer()
        return 1

    def topics(self, names):
        self._answer()
        return {name: Topic(name, self.topic_id, 2) for name in names}

    def sources(self, topics):
        self._answer()
        assert list(topics) == ["clicks"]
        return [A, B]

    def earliest(self, sources):
        return dict.fromkeys(sources, 0)

    def latest(self, sources):
        return dict.fromkeys(sources, self.ends)

    def offsets_at(self, when, sources):
        return {source: self._first(int(when.timestamp() * 1000))[0] for source in sources}

    def first_records(self, instants_ms):
        return {source: self._first(instant) for source, instant in instants_ms.items()}

    def retention(self, topics):
        return dict.fromkeys(topics, timedelta(days=1))

    def _answer(self) -> None:
        if not self.up:
            self.waits += 1
            raise BrokerUnreachable("no Kafka broker answers")

    def _first(self, instant: int) -> tuple[int, int]:
        noon = int(NOON.timestamp() * 1000)
        offset = max(0, self.ends + (instant - noon) // 1000)
        return (offset, noon - (self.ends - offset) * 1000) if offset < self.ends else (-1, -1)
