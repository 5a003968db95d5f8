"""What the demo's topics were given: the side of the account that DuckDB does not see."""

from collections import Counter
from dataclasses import dataclass, field
from datetime import datetime

from writer.embedded.events import Produced
from writer.rooms.report import Source


@dataclass
class Given:
    """Messages of each partition, as the broker acknowledged them; each is counted once."""

    since: datetime  # event times of all but the late events lie at or after this
    good: Counter[Source] = field(default_factory=Counter)
    late: Counter[Source] = field(default_factory=Counter)
    ahead: Counter[Source] = field(default_factory=Counter)
    broken: Counter[Source] = field(default_factory=Counter)
    new_field: int = 0  # of the good and late ones

    @property
    def ends(self) -> Counter[Source]:
        """Ends of the logs."""
        return self.good + self.late + self.ahead + self.broken

    def add(self, topic: str, made: Produced, *, new_field: bool) -> None:
        """Note what one call has produced; `new_field` tells whether its schema had the field."""
        for mine, counts in (
            (self.good, made.good), (self.late, made.late), (self.ahead, made.ahead), (self.broken, made.broken)
        ):  # fmt: skip
            mine.update({(topic, partition): count for partition, count in counts.items()})
        if new_field:
            self.new_field += sum(made.good.values()) + sum(made.late.values())
