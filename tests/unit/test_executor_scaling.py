"""How a driver keeps as many executors as are wanted, and what it answers to who wants them."""

import json
from datetime import UTC, datetime, timedelta
from http import HTTPStatus

import pytest
from pydantic import ValidationError

from headrace.writer.config.pipelines import Config
from headrace.writer.config.sections.connections import Autoscaler
from headrace.writer.scaling.executor_manager import REQUEST_FILE, ExecutorManager
from headrace.writer.scaling.scale_steps import Executor, ExecutorTarget, Steps, steps
from headrace.writer.scaling.spark_settings import offsets_per_range, refusal, settings, slots_most
from headrace.writer.storage.locations import store_at
from tests.support.sample_records import config

NOW = datetime(2026, 3, 4, 12, tzinfo=UTC)
SECTION = Autoscaler(token="a-secret", max_executors=9)


def executor(number: int, **more: object) -> Executor:
    """One that came so many minutes after NOW."""
    return Executor(**{"id": str(number), "since": NOW + timedelta(minutes=number), "cores": 2, **more})


THREE = [executor(0), executor(1), executor(2)]


# --- which come and go ------------------------------------------------------------------------------------------


def test_the_youngest_go_first_and_only_between_batches():
    wanted = ExecutorTarget(1, since_s=100, asserted_s=100)
    assert steps(wanted, THREE, {}, 101, boundary=False) == Steps(None)
    assert steps(wanted, THREE, {}, 101, boundary=True) == Steps(1, ("2", "1"))


def test_the_total_is_asked_for_before_any_goes_and_again_every_quarter_of_a_minute():
    assert steps(ExecutorTarget(3, 0, None), THREE, {}, 1, boundary=False).total == 3
    assert steps(ExecutorTarget(3, 0, 10), THREE, {}, 24, boundary=False).total is None
    assert steps(ExecutorTarget(3, 0, 10), THREE, {}, 25, boundary=False).total == 3
    assert steps(ExecutorTarget(2, 0, 10), THREE, {}, 11, boundary=True) == Steps(2, ("2",))


def test_batches_that_always_overlap_do_not_keep_executors_for_ever():
    assert steps(ExecutorTarget(2, 0, 0), THREE, {}, 119, boundary=False).drain == ()
    assert steps(ExecutorTarget(2, 0, 0), THREE, {}, 120, boundary=False).drain == ("2",)


def test_an_executor_that_drains_counts_as_gone():
    assert steps(ExecutorTarget(2, 0, 0), THREE, {"2": 1.0}, 5, boundary=True).drain == ()
    assert steps(ExecutorTarget(1, 0, 0), THREE, {"2": 1.0}, 5, boundary=True).drain == ("1",)


def test_of_two_that_came_at_once_the_later_number_is_younger():
    twins = [executor(n, since=NOW) for n in (10, 9)]
    assert steps(ExecutorTarget(1, 0, 0), twins, {}, 5, boundary=True).drain == ("10",)


# --- the keeper -------------------------------------------------------------------------------------------------


class Cluster:
    """A cluster that gives what it is asked for, up to what it grants."""

    def __init__(self, *executors: Executor, grants: int = 99) -> None:
        self.executors, self.calls, self.grants = list(executors), [], grants

    def list_executors(self) -> list[Executor]:
        return self.executors

    def ask(self, total: int) -> bool:
        self.calls.append(("ask", total))
        return True

    def drain(self, one: str) -> bool:
        self.calls.append(("drain", one))
        return True


class World:
    """A keeper, its cluster, and a clock."""

    def __init__(self, tmp_path, *executors: Executor, refused: str | None = None) -> None:
        self.cluster, self.now_s, self.boundary = Cluster(*executors), 0.0, True
        self.store = store_at(str(tmp_path))
        self.executor_manager = ExecutorManager(
            "spark://host:7077", SECTION, refusal=refused, cpus_per_task=1, stores=lambda: [self.store],
            boundary=lambda: self.boundary, seconds=lambda: self.now_s,
        )  # fmt: skip
        self.executor_manager._cluster = self.cluster

    def post(self, query: str, token: str = "a-secret") -> tuple[int, str]:
        status, _, body = self.executor_manager.post(f"/scale?{query}", f"Bearer {token}")
        return status, body.decode()


@pytest.fixture
def world(tmp_path):
    return World(tmp_path, *THREE)


def test_fewer_are_decommissioned_are_seen_to_go_and_none_is_lost(world):
    assert world.post("executors=1")[0] == HTTPStatus.ACCEPTED
    world.executor_manager.run_step()
    assert world.cluster.calls == [("ask", 1), ("drain", "2"), ("drain", "1")]
    assert [one["id"] for one in world.executor_manager.to_dict()["draining"]] == ["1", "2"]
    assert world.executor_manager.to_dict()["registered"] == 1
    world.cluster.executors = [executor(0, failed_tasks=0)]
    world.executor_manager.run_step()
    told = world.executor_manager.to_dict()
    assert (told["draining"], told["gone"], told["lost"], told["failed_tasks"]) == ([], 2, 0, 0)


def test_one_that_went_untold_is_lost_and_its_failed_tasks_stay_counted(world):
    world.cluster.executors = [executor(0), executor(1, failed_tasks=3)]
    world.executor_manager.run_step()
    world.cluster.executors = [executor(0)]
    world.executor_manager.run_step()
    told = world.executor_manager.to_dict()
    assert (told["lost"], told["gone"], told["failed_tasks"]) == (1, 0, 3)


def test_how_long_executors_are_missing_is_told_until_one_comes(world):
    world.post("executors=5")
    world.executor_manager.run_step()
    world.now_s = 70.0
    world.executor_manager.run_step()
    assert world.executor_manager.to_dict()["short_seconds"] == 70
    world.cluster.executors = [*THREE, executor(3)]
    world.executor_manager.run_step()
    assert world.executor_manager.to_dict()["short_seconds"] == 0
    world.cluster.executors = [*THREE, executor(3), executor(4)]
    world.executor_manager.run_step()
    assert world.executor_manager.to_dict()["short_seconds"] is None


def test_the_next_driver_requests_as_many_executors_as_the_last_one(world, tmp_path):
    world.post("executors=4")
    again = World(tmp_path, *THREE)
    again.executor_manager.begin(lambda: again.cluster)
    again.executor_manager.close()
    assert again.executor_manager.to_dict()["requested"] == 4
    assert again.cluster.calls[0] == ("ask", 4)


def test_a_stored_target_that_cannot_be_read_is_ignored(world):
    world.store.put(REQUEST_FILE, b"{")
    assert world.executor_manager._stored_request() is None


def test_garbage_collection_is_a_share_of_the_tasks_time_of_the_last_minute(world):
    world.executor_manager.run_step()
    world.now_s = 61.0
    world.cluster.executors = [executor(0, task_s=50.0, gc_s=10.0), executor(1, task_s=50.0, gc_s=1.0)]
    world.executor_manager.run_step()
    assert world.executor_manager.to_dict()["gc_share"] is None, "there was nothing to compare with"
    world.now_s = 130.0
    world.cluster.executors = [executor(0, task_s=90.0, gc_s=20.0), executor(1, task_s=90.0, gc_s=3.0)]
    world.executor_manager.run_step()
    assert world.executor_manager.to_dict()["gc_share"] == 0.25


def test_a_scale_request_needs_the_token_and_stays_within_the_bounds(world):
    assert world.post("executors=2", "guess") == (403, "this needs the token of autoscaler.token\n")
    assert world.post("executors=0")[0] == world.post("executors=10")[0] == world.post("")[0] == 400
    assert world.post("executors=-1")[0] == world.post("executors=²")[0] == 400
    assert world.executor_manager.post("/scaleup?executors=2", "Bearer a-secret") is None
    assert world.cluster.calls == []
    status, body = world.post("executors=9")
    assert (status, json.loads(body)["requested"]) == (202, 9)


def test_a_request_is_reported_once_with_its_reason(world):
    for _ in range(3):
        world.post("executors=4&decision=up&reason=the%20lag%20grows")
    world.post("executors=4&decision=stay&reason=it%20is%20enough")
    told = world.executor_manager.to_dict()["decisions"]
    assert [(one["decision"], one["reason"], one["to"]) for one in told] == [
        ("stay", "it is enough", 4), ("up", "the lag grows", 4)
    ]  # fmt: skip
    world.post("executors=4&decision=stay&reason=it%20is%20still%20enough")
    assert world.executor_manager.to_dict()["decisions"][0] == {**told[0], "reason": "it is still enough"}


def test_how_many_would_be_right_is_told_as_it_was_said_last_and_never_asked_for(world):
    world.post("executors=4&decision=wait&reason=then%206&recommended=6")
    world.now_s = 20.0
    world.post("executors=4&decision=wait&reason=then%208&recommended=8")
    world.now_s = 35.0
    world.executor_manager.run_step()
    told = world.executor_manager.to_dict()
    assert [(one["recommended"], one["reason"]) for one in told["decisions"]] == [(8, "then 8")]
    assert (told["requested"], told["asked_seconds"], world.cluster.calls) == (4, 15, [("ask", 4)])
    for odd in ("", "-1", "²", "9" * 5_000):
        assert world.post(f"executors=4&decision=stay{odd}&recommended={odd}")[0] == 202
        assert world.executor_manager.to_dict()["decisions"][0]["recommended"] is None


def test_without_a_token_no_client_may_scale():
    executor_manager = ExecutorManager(
        "spark://host:7077", Autoscaler(), refusal=None, cpus_per_task=1, stores=list, boundary=lambda: True
    )  # fmt: skip
    status, _, body = executor_manager.post("/scale?executors=2", "Bearer ")
    assert (status, body) == (403, b"this needs the token of autoscaler.token; none is set\n")


def test_before_spark_is_there_one_asks_again(world):
    world.executor_manager._cluster = None
    assert world.post("executors=2") == (503, "Spark is starting; ask again\n")


def test_a_token_is_never_shown_and_never_empty():
    assert "secret" not in repr(SECTION)
    with pytest.raises(ValidationError, match="at least 8"):
        Autoscaler(token="")
    with pytest.raises(ValidationError, match="max_executors 1 is below min_executors 2"):
        Autoscaler(min_executors=2, max_executors=1)
    with pytest.raises(ValidationError, match="one level up"):
        Autoscaler(policy={"max_executors": 3})


# --- what Spark must be told ------------------------------------------------------------------------------------


@pytest.mark.parametrize("master", ["local", "local[*]", "local[*, 4]", "local[2]"])
def test_tasks_in_the_drivers_process_cannot_be_scaled_and_it_says_what_can(master, tmp_path):
    said = refusal(master, {})
    assert said is not None
    assert f"spark.master is {master}:" in said
    assert "local-cluster[3,2,2048]" in said
    refused = World(tmp_path, refused=said)
    refused.executor_manager._cluster = None
    assert refused.post("executors=2") == (409, said + "\n")
    assert settings(master, SECTION) == {}


def test_settings_that_would_work_against_it_are_refused():
    assert refusal("spark://host:7077", {}) is None
    assert "dynamicAllocation" in str(refusal("k8s://host", {"spark.dynamicAllocation.enabled": "true"}))
    assert "would stay, without work" in str(refusal("k8s://host", {"spark.decommission.enabled": "false"}))


def test_executors_that_are_told_to_go_do_go():
    told = settings("spark://host:7077", SECTION)
    assert told["spark.decommission.enabled"] == "true"
    assert told["spark.storage.decommission.enabled"] == "false"
    assert told["spark.executor.decommission.forceKillTimeout"] == "600s"


def on(root, master: str, conf: dict[str, str], **autoscale: object) -> Config:
    raw = config(root).model_dump()
    return Config.model_validate({**raw, "spark": {"master": master, "conf": conf}, "autoscaler": autoscale})


def test_a_full_batch_is_cut_for_every_slot_there_may_be(tmp_path):
    cut = on(tmp_path, "spark://host:7077", {"spark.executor.cores": "4", "spark.cores.max": "24"}, max_executors=10)
    assert slots_most(cut) == 24
    assert offsets_per_range(cut, 5_000_000) == 69_445
    fewer = on(tmp_path, "k8s://host", {"spark.executor.cores": "4", "spark.task.cpus": "2"}, max_executors=3)
    assert slots_most(fewer) == 6
    assert slots_most(on(tmp_path, "local[*, 4]", {})) is None
    assert offsets_per_range(on(tmp_path, "local[*, 4]", {}), 5_000_000) is None
