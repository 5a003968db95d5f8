"""Keeps account of what the fault suite finds: each test that is marked `cell`, and those that count their own."""

from collections.abc import Callable, Iterator, Sequence

import pytest

from recovery.checkpoints.checks import Check
from tests.support import checkpoint_damages, fault_cells, oracle


@pytest.fixture
def record(request: pytest.FixtureRequest) -> Callable[..., None]:
    """Put down a cell that the test has counted itself."""
    return lambda **counted: fault_cells.Cell(test=_name(request.node), **counted).put()


@pytest.fixture
def tried(request: pytest.FixtureRequest) -> Callable[..., None]:
    """Put down what became of a damaged checkpoint, with the verdicts of the oracle in this test."""
    before = oracle.tally.copy()

    def put(
        row: str, damage: str, moment: str, spark: str, headrace: str, bad: Sequence[Check], level: str, seconds: float
    ) -> None:
        tally = oracle.tally.since(before)
        assert tally.checks, "a damage without a verdict of the oracle"
        checkpoint_damages.Outcome(
            row, damage, moment, spark, headrace, ", ".join(check.name for check in bad), level, tally.records,
            tally.lost, tally.twice, round(seconds, 1), getattr(request.node, "originalname", request.node.name),
        ).put()  # fmt: skip

    return put


@pytest.hookimpl(wrapper=True)
def pytest_pyfunc_call(pyfuncitem: pytest.Function) -> Iterator[None]:
    """Put down the verdicts of a marked test that passed."""
    before = oracle.tally.copy()
    outcome = yield
    mark = pyfuncitem.get_closest_marker("cell")
    if mark is not None:
        found, (fault, moment) = oracle.tally.since(before), mark.args
        assert found.looks, "a cell that no reader looked at before the restart"
        assert found.checks, "a cell without a verdict of the oracle"
        given = getattr(getattr(pyfuncitem, "callspec", None), "params", {})
        on = f"Spark, Kafka, {fault_cells.FORMATS[given.get('form', 'delta')]}"
        fault_cells.Cell(
            fault.format(**given), moment.format(**given), on, _name(pyfuncitem), 1, found.seen_twice, found.records,
            found.lost, found.twice,
        ).put()  # fmt: skip
    return outcome


def _name(item: pytest.Item) -> str:
    return f"{item.path.name}::{getattr(item, 'originalname', item.name)}"
