"""Keeps account of what the fault suite finds: each test that is marked `cell`, and those that count their own."""

from collections.abc import Callable, Iterator, Sequence

import pytest

from headrace.recovery.checkpoints.checks import Check
from tests.servers.glue_api import GlueApi
from tests.servers.objects import CREDENTIALS
from tests.servers.scripted import Scripted, serve_script
from tests.support import checkpoint_damages, fault_cells, oracle
from tests.support.writer_process import Site


@pytest.fixture
def api() -> GlueApi:
    """What AWS Glue answers."""
    return GlueApi()


@pytest.fixture
def glue(api: GlueApi, site: Site, monkeypatch: pytest.MonkeyPatch) -> Iterator[Scripted]:
    """Glue beside the site's registry."""
    for name, value in CREDENTIALS.items():
        monkeypatch.setenv(name, value)
    with serve_script(api) as server:
        site.overrides["registry"] = {"url": site.registry_url, "glue": {"endpoint": server.url}}
        yield server


@pytest.fixture
def record(request: pytest.FixtureRequest) -> Callable[..., None]:
    """Put down a cell that the test has counted itself."""
    return lambda **counts: fault_cells.Cell(test=name_of(request.node), **counts).put()


@pytest.fixture
def record_outcome(request: pytest.FixtureRequest) -> Callable[..., None]:
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
        fault, moment = mark.args
        tally = oracle.tally.since(before)
        assert tally.looks, "a cell that no reader looked at before the restart"
        assert tally.checks, "a cell without a verdict of the oracle"
        parameters = getattr(getattr(pyfuncitem, "callspec", None), "params", {})
        table_format = fault_cells.FORMATS[parameters.get("form", "delta")]
        cell = fault_cells.Cell(
            fault=fault.format(**parameters),
            moment=moment.format(**parameters),
            on=f"Spark, Kafka, {table_format}",
            test=name_of(pyfuncitem),
            times=1,
            seen_twice=tally.seen_twice,
            records=tally.records,
            lost=tally.lost,
            twice=tally.twice,
        )
        cell.put()
    return outcome


def name_of(item: pytest.Item) -> str:
    """Return the file and the name of a test, without its parameters."""
    return f"{item.path.name}::{getattr(item, 'originalname', item.name)}"
