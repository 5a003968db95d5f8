"""A catalog that moves a table between its log and its files."""

from collections.abc import Mapping, Sequence
from contextlib import suppress
from typing import Any

import pytest

from headrace.writer.table.iceberg.table_names import TableNames
from tests.support.effect_failures import Died, die_after

Effects = Mapping[Any, Sequence[str]]  # names of methods, by who has them


def check_switches(names: TableNames, places: Sequence[str], effects: Effects, monkeypatch: pytest.MonkeyPatch) -> None:
    """Switch two tables there and back, let each switch die at one of the catalog's effects, and end it by the next."""
    first, second = places
    for after in range(9):
        steps = die_after(monkeypatch, after, effects)
        is_dead = False
        next(steps)
        try:
            names.switch(first, second)
        except Died:
            is_dead = True
        with suppress(StopIteration):
            next(steps)
        assert names.is_switched(second) != is_dead, after
        names.switch(first, second)
        assert names.is_switched(second)
        assert (names.find(second), len(names._names())) == (names.main, 2), after
        first, second = second, first
        if not is_dead:
            assert after == sum(map(len, effects.values())) * 2
            return
    raise AssertionError("it has more effects than expected")
