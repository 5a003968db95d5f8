"""Pipelines of one driver share its task slots by weight: Spark's pools, and turns where slots are fewer."""

import threading
from pathlib import Path
from typing import Any
from xml.etree import ElementTree as ET

import pytest
from pydantic import ValidationError

from headrace.writer.config.pipelines import Config
from headrace.writer.config.sections.resource_limits import Scheduling
from headrace.writer.core.errors import Draining
from headrace.writer.driver.batches.batch_queue import BatchQueue
from headrace.writer.preflight.checks.host_checks import ProbedLocations, machine
from headrace.writer.scaling.spark_settings import pools, slots_now_at_most
from tests.support.sample_records import config

EVEN = Scheduling.model_validate({})


def changed(root: Path, scheduling: dict[str, int], **spark: Any) -> Config:
    raw = config(root, scheduling=scheduling).model_dump()
    return Config.model_validate({**raw, "spark": spark})


def test_spark_gets_a_pool_for_each_pipeline() -> None:
    found = ET.fromstring(pools({"clicks": Scheduling(weight=3, min_share=2), "installs": EVEN}))
    said = {pool.get("name"): {one.tag: one.text for one in pool} for pool in found}
    assert said == {
        "clicks": {"schedulingMode": "FIFO", "weight": "3", "minShare": "2"},
        "installs": {"schedulingMode": "FIFO", "weight": "1", "minShare": "0"},
    }


@pytest.mark.parametrize(("key", "value"), [("weight", 0), ("min_share", -1), ("wieght", 2)])
def test_an_impossible_weight_or_min_share_is_refused(tmp_path: Path, key: str, value: int) -> None:
    with pytest.raises(ValidationError, match=key):
        config(tmp_path, scheduling={key: value})


@pytest.mark.parametrize(
    ("key", "value"), [("spark.scheduler.mode", "FIFO"), ("spark.scheduler.allocation.file", "/etc/pools.xml")]
)
def test_pools_of_another_file_and_shares_of_ours_exclude_each_other(tmp_path: Path, key: str, value: str) -> None:
    with pytest.raises(ValidationError, match=rf"sets {key}, so pipelines.clicks.scheduling would not count"):
        changed(tmp_path, {"weight": 2}, conf={key: value})
    assert changed(tmp_path, {}, conf={key: value})
    assert changed(tmp_path, {"weight": 2}, conf={"spark.scheduler.mode": "fair"})


@pytest.mark.parametrize(
    ("master", "conf", "slots"),
    [
        ("local", {}, 1),
        ("local[4]", {}, 4),
        ("local[4, 2]", {"spark.task.cpus": "2"}, 2),
        ("spark://host:7077", {"spark.executor.cores": "4", "spark.cores.max": "40"}, 40),
    ],
)
def test_minimum_shares_beyond_the_slots_are_a_warning(
    tmp_path: Path, master: str, conf: dict[str, str], slots: int
) -> None:
    some = changed(tmp_path, {"min_share": slots}, master=master, conf=conf)
    assert slots_now_at_most(some) == slots
    many = changed(tmp_path, {"min_share": slots + 1}, master=master, conf=conf)
    for settings, status in ((some, "ok"), (many, "warning")):
        (found,) = (one for one in machine(settings, [], ProbedLocations(None)) if one.check == "scheduling")
        assert found.status == status
    assert f"minimum shares of {slots + 1} slots in all, and there are {slots}" in found.message
    none = machine(config(tmp_path), [], ProbedLocations(None))
    assert not [one for one in none if one.check == "scheduling"]


def test_a_batch_waits_for_its_turn_and_a_stop_ends_the_wait() -> None:
    queue, stopping, waits = BatchQueue(), threading.Event(), list[str]()
    for name in "abc":
        queue.join(name, EVEN)
    done = threading.Event()

    def third() -> None:
        with queue.turn("c", 1, lambda: waits.append("c"), stopping=threading.Event()) as took:
            took(1.0)
        done.set()

    with queue.turn("a", 1, lambda: waits.append("a"), stopping=stopping) as took:
        took(2.5)
        with queue.turn("b", 1, lambda: waits.append("b"), stopping=stopping):
            threading.Thread(target=third, daemon=True).start()
            assert not done.wait(0.2), "one slot, and one batch beyond it"
        assert done.wait(60), "a slot is free once b has left"
    assert waits == ["c"]
    assert (queue._order.last_s["a"], queue._order.running, queue._order.waiting) == (2.5, frozenset(), frozenset())
    stopping.set()
    with (
        queue.turn("a", 1, int, stopping=threading.Event()),
        queue.turn("b", 1, int, stopping=threading.Event()),
        pytest.raises(Draining, match="'c' was asked to stop while its batch waited"),
        queue.turn("c", 1, int, stopping=stopping),
    ):
        pass
    assert not queue._order.waiting
