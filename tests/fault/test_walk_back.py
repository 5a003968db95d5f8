"""L4: a table whose log forgot how far it was read. Its files and an older checkpoint say it, and nothing is twice."""

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from headrace.recovery.checkpoints.checks import leads_to, preflight
from headrace.recovery.checkpoints.facts import collect_pipeline_facts
from headrace.recovery.checkpoints.walk_back import NotRebuilt, RebuiltOffsets, walk_back
from headrace.recovery.escalation.error_catalogue import classify
from headrace.recovery.escalation.levels import RecoveryLevel
from headrace.writer.audit.audit import audit
from headrace.writer.clients.kafka import Cluster
from tests.support import oracle
from tests.support.damaged_checkpoint import PIPELINE, PipelineCopy, blank, fill_golden, rewrite, session
from tests.support.forgotten_offsets import forget

pytestmark = [pytest.mark.slow, pytest.mark.timeout(600)]
MakeTopic = Callable[..., str]


@pytest.fixture(scope="module")
def spark_and_copy(
    tmp_path_factory: pytest.TempPathFactory, bootstrap: str, registry_url: str, topic: MakeTopic
) -> Iterator[tuple[Any, PipelineCopy]]:
    """Spark, and a pipeline whose last records are broken, so that files of both tables are needed."""
    name = topic(2)
    pipeline_copy = blank(tmp_path_factory.mktemp("walk") / "done", bootstrap, registry_url, name)
    with session(pipeline_copy.config) as spark:
        fill_golden(pipeline_copy, spark)
        pipeline_copy.site.fill(name, 40, seed=12, broken=40)
        code, text = pipeline_copy.carry(spark)
        assert code == 0, text
        pipeline_copy.site.fill(name, 30, seed=13)
        yield spark, pipeline_copy


def break_newest(pipeline_copy: PipelineCopy) -> None:
    rewrite(pipeline_copy.newest(), b"")


@pytest.mark.parametrize("broken", [False, True], ids=["its checkpoint is whole", "its checkpoint is torn, too"])
def test_a_table_that_forgot_its_frontier_is_gone_on_with(
    spark_and_copy: tuple[Any, PipelineCopy], tmp_path: Path, record_outcome: Callable[..., None], broken: bool
) -> None:
    spark, filled_copy = spark_and_copy
    pipeline_copy = filled_copy.copy(tmp_path / "own")
    forget(pipeline_copy.lake)
    if broken:
        break_newest(pipeline_copy)
    had = oracle.offsets(pipeline_copy.lake)
    bad = [
        check for check in preflight(collect_pipeline_facts(pipeline_copy.config, PIPELINE).facts) if check.ok is False
    ]
    assert leads_to(bad) is RecoveryLevel.WALK_BACK
    code, text = pipeline_copy.carry(spark)
    assert (code, classify(text).level) == (3, RecoveryLevel.WALK_BACK), text
    code, text = pipeline_copy.carry(spark, new_run=True)
    assert code == 3, "a new run would read all of it again, so it does not begin"
    assert oracle.offsets(pipeline_copy.lake) == had
    config = pipeline_copy.config
    found = walk_back(config, PIPELINE, Cluster(config.kafka.address, config.kafka.request_timeout))
    assert isinstance(found, RebuiltOffsets), found
    assert ("copies" in found.location) == broken
    assert bool(found.rejected) == broken
    assert sum(found.offsets.values()) == 380
    code, text = pipeline_copy.carry(spark)
    assert code == 0, text
    frontier = oracle.check(pipeline_copy.lake, PIPELINE, pipeline_copy.site.ends(pipeline_copy.topic))
    assert sum(frontier.values()) == 410
    account = audit(config, PIPELINE, since=None, deep=True)
    assert account.adds_up, account.problems
    again = walk_back(config, PIPELINE, Cluster(config.kafka.address, config.kafka.request_timeout))
    assert isinstance(again, NotRebuilt), "it is done once; a table that tells its frontier is left alone"
    moment = "its checkpoint is torn, too" if broken else "its checkpoint is whole"
    record_outcome(
        "frontier", "the table's log forgot how far it was read", moment, "no part of it", "exit 3", bad, "L4", 0.0
    )
