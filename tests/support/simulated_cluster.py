"""A Kafka cluster of one topic whose logs a test decides, in place of the client of a real one."""

from collections.abc import Sequence

from headrace.writer.clients.kafka import Topic


class Cluster:
    """One topic; per partition what the log holds, and where the oldest open transaction begins."""

    def __init__(self, *log_ranges: tuple[int, int], id_: str = "a", stable: int | None = None) -> None:
        self.held = list(log_ranges)
        self.id = id_
        self.stable = stable
        self.waited = 0

    def topics(self, _names: Sequence[str] = ()) -> dict[str, Topic]:
        return {"clicks": Topic("clicks", self.id, len(self.held))}

    def earliest(self, sources):
        return {s: self.held[s[1]][0] for s in sources}

    def latest(self, sources):
        return {s: self.held[s[1]][1] for s in sources}

    def readable(self, sources):
        return {s: end if self.stable is None else self.stable for s, end in self.latest(sources).items()}

    def offsets_at(self, _when, sources):
        return {s: self.held[s[1]][1] - 2 for s in sources}

    def grows(self, _seconds: float) -> None:
        """A leader that was behind catches up while it is waited for."""
        self.waited += 1
        self.held = [(first, end + 10) for first, end in self.held]
