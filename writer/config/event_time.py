"""The section `event_time.clocks`: whose clocks are not UTC."""

from collections.abc import Sequence
from datetime import timedelta

from pydantic import Field, model_validator

import bucketers
from writer.batch.bucketing import Clock
from writer.config.base import Strict
from writer.core.units import Shift


class ClockRule(Strict):
    """Whose clock is not UTC, and what it shows instead. Without `topic` and `field` it is everybody's."""

    topic: str | None = Field(None, min_length=1, description="only rows of this topic")
    field: str | None = Field(None, min_length=1, description="only rows where this field has one of the `values`")
    values: list[str] = Field(default_factory=list, description="with `field`: its values, as text")
    shift: Shift | None = Field(None, description="what is added to their event times, such as `-1 h`")
    zone: str | None = Field(
        None, description="their event times are wall clocks of this IANA zone, such as Europe/Berlin"
    )

    @model_validator(mode="after")
    def _says_whose_and_how(self) -> "ClockRule":
        if (self.shift is None) == (self.zone is None):
            raise ValueError("a clock has either 'shift' or 'zone'")
        if (self.field is None) != (not self.values):
            raise ValueError("a clock has 'field' and 'values' together, or neither")
        if self.zone is not None:
            bucketers.EventTime(timedelta(days=1), self.zone)  # raises ValueError for a zone that nobody knows
        return self


def clocks(rules: Sequence[ClockRule]) -> tuple[Clock, ...]:
    """Return what the rooms are told of the clocks."""
    return tuple(Clock(r.topic, r.field, tuple(r.values), r.shift, r.zone) for r in rules)
