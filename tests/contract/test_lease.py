"""What every keeper of leases promises. One suite, every adapter."""

import json
import os
import signal
import subprocess
import sys
import threading
import time
import uuid
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any, cast

import pytest

from headrace.writer.lease.holder import LeaseHolder
from headrace.writer.lease.kubernetes_api import Api
from headrace.writer.lease.kubernetes_lease import KubernetesLeases, LeaseContent
from headrace.writer.lease.lease import Leases, ObservedLease, StoreLeases, is_free, observe
from headrace.writer.storage.base import Store
from headrace.writer.storage.locations import store_at
from tests.servers.kubernetes import Cluster, cluster, until
from tests.servers.leases import account, lease_api
from tests.servers.objects import ObjectServer

SHORT = timedelta(seconds=2)
REAL = pytest.param("kubernetes", marks=[pytest.mark.slow, pytest.mark.engines])


@dataclass(frozen=True)
class Keeper:
    """Where a lease is kept."""

    make: Callable[[], Leases]  # one more who looks at it
    remove: Callable[[], None]  # as somebody does who was told that leases are disposable
    program: str  # an expression that makes one more, in another process


@pytest.fixture(params=["local", "s3", "api", REAL])
def executor_manager(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Keeper]:
    match request.param:
        case "local":
            yield in_store(f"{tmp_path}/checkpoints/clicks")
        case "s3":
            server: ObjectServer = request.getfixturevalue("on_s3")
            yield in_store(f"{server.bucket()}/checkpoints/clicks")
        case "api":
            with lease_api() as (api, url):
                yield in_kubernetes(url, account(tmp_path / "account"), "headrace-clicks", api.objects.clear)
        case _:
            yield on_a_cluster(request.getfixturevalue("kubernetes"), tmp_path)


def in_store(location: str) -> Keeper:
    def remove() -> None:
        store = store_at(location)
        for name in list(store.list("_lease")):
            store.delete(f"_lease/{name}")

    return Keeper(lambda: StoreLeases(store_at(location)), remove, f"StoreLeases(store_at({location!r}))")


def in_kubernetes(url: str, folder: Path, name: str, remove: Callable[[], None]) -> Keeper:
    about = f"LeaseContent({name!r}, 'clicks', timedelta(seconds=2))"
    program = f"KubernetesLeases(Api({url!r}, Path({str(folder)!r})), {about})"
    return Keeper(lambda: KubernetesLeases(Api(url, folder), LeaseContent(name, "clicks", SHORT)), remove, program)


@pytest.fixture(scope="session")
def kubernetes(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    with cluster(tmp_path_factory.mktemp("kubernetes") / "cluster") as kubernetes_cluster:
        kubernetes_cluster.namespace("lake")
        yield kubernetes_cluster


def on_a_cluster(kubernetes: Cluster, folder: Path) -> Keeper:
    """Keep it there under an account that has just the rights which the chart gives."""
    name, admin = f"headrace-{uuid.uuid4().hex[:8]}", kubernetes.api
    rule = {"apiGroups": ["coordination.k8s.io"], "resources": ["leases"], "resourceNames": [name]}
    rights = "/apis/rbac.authorization.k8s.io/v1/namespaces/lake"
    about = {"metadata": {"name": name}}
    admin.create("/api/v1/namespaces/lake/serviceaccounts", about)
    admin.create(f"{rights}/roles", {**about, "rules": [{**rule, "verbs": ["get", "create", "update"]}]})
    admin.create(f"{rights}/rolebindings", {
        **about, "roleRef": {"apiGroup": "rbac.authorization.k8s.io", "kind": "Role", "name": name},
        "subjects": [{"kind": "ServiceAccount", "name": name, "namespace": "lake"}],
    })  # fmt: skip
    own = admin.of("lake", name)
    until(lambda: own.may("get", "leases", "lake", "coordination.k8s.io", name), 30, "the rights of the account")
    files = account(folder / "account", own.token, "lake", own.ca.read_bytes())
    url = f"/apis/coordination.k8s.io/v1/namespaces/lake/leases/{name}"
    return in_kubernetes(own.url, files, name, lambda: (admin.delete(url), None)[1])


@pytest.fixture
def leases(executor_manager: Keeper) -> Callable[[], Leases]:
    """Make one more who looks at the same lease."""
    return executor_manager.make


def take(held: LeaseHolder, pipeline: str = "clicks") -> bool:
    """Take a lease, however long that takes."""
    while not held.try_take(pipeline):
        time.sleep(SHORT.total_seconds() / 8)
    return True


def test_a_lease_exists_once_it_is_taken_and_has_the_next_epoch(leases: Callable[[], Leases]) -> None:
    pipeline_leases, two = leases(), leases()
    assert pipeline_leases.look() is None
    assert pipeline_leases.take(1, "a")
    seen = two.look()
    assert seen is not None
    assert (seen.epoch, seen.holder, seen.released) == (1, "a", False)
    assert not two.take(1, "b")
    assert two.take(2, "b")
    assert not pipeline_leases.renew(1, "a"), "what is lost stays lost"
    assert two.renew(2, "b")
    newest = pipeline_leases.look()
    assert newest is not None
    assert (newest.epoch, newest.holder) == (2, "b")


def test_a_renewal_is_seen_and_standing_still_is_too(leases: Callable[[], Leases]) -> None:
    pipeline_leases, two = leases(), leases()
    assert pipeline_leases.take(1, "a")
    first = two.look()
    assert two.look() == first
    assert pipeline_leases.renew(1, "a")
    second = two.look()
    assert second != first
    assert pipeline_leases.renew(1, "a")
    assert two.look() != second
    pipeline_leases.release(1, "a")
    released = two.look()
    assert released is not None
    assert released.released


def test_of_many_who_take_it_at_once_one_has_it(leases: Callable[[], Leases]) -> None:
    for epoch in (1, 2, 3):
        won: list[int] = []
        ready = threading.Barrier(8)

        def grab(n: int, epoch: int = epoch, won: list[int] = won, ready: threading.Barrier = ready) -> None:
            mine = leases()
            ready.wait()
            if mine.take(epoch, str(n)):
                won.append(n)

        threads = [threading.Thread(target=grab, args=[n]) for n in range(8)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert len(won) == 1


def test_a_straggler_does_not_take_a_number_that_is_long_past(leases: Callable[[], Leases]) -> None:
    pipeline_leases = leases()
    for epoch in range(1, 30):
        assert pipeline_leases.take(epoch, "a")
    assert not leases().take(3, "b"), "its object was cleaned up, but it is not the newest"
    newest = pipeline_leases.look()
    assert newest is not None
    assert newest.epoch == 29
    assert not pipeline_leases.renew(5, "a"), "many have held it since"


def test_only_silence_by_ones_own_clock_frees_a_lease(leases: Callable[[], Leases]) -> None:
    pipeline_leases = leases()
    assert pipeline_leases.take(1, "a")
    watch = observe(None, pipeline_leases.look(), 100.0)
    assert not is_free(watch, 119.9, timedelta(seconds=20))
    assert is_free(watch, 120.0, timedelta(seconds=20))
    assert pipeline_leases.renew(1, "a")
    assert observe(watch, pipeline_leases.look(), 119.0) == ObservedLease(pipeline_leases.look(), 119.0)


def test_the_second_waits_says_for_whom_and_takes_over_at_a_release(
    leases: Callable[[], Leases], caplog: pytest.LogCaptureFixture
) -> None:
    first = LeaseHolder({"clicks": leases()}, "host-a", expires_after=SHORT)
    assert take(first)
    second = LeaseHolder({"clicks": leases()}, "host-b", expires_after=SHORT)
    taken = threading.Thread(target=lambda: take(second))
    taken.start()
    time.sleep(2 * SHORT.total_seconds())
    assert second.epochs == {}, "the first renews it"
    waited = [message for message in caplog.messages if "lease_awaited" in message]
    assert all(part in line for line in waited for part in ("clicks", "host-a", "epoch")), waited
    assert [line.partition("reason=")[2] for line in waited] == [
        "'its holder may have ended'",
        "'its holder renews it'",
    ]
    first.close()
    taken.join(60)
    assert second.epochs == {"clicks": 2}
    assert first.take_losses() == []
    second.close()


def test_one_that_ends_while_it_waits_releases_what_it_has(leases: Callable[[], Leases], tmp_path: Path) -> None:
    other = StoreLeases(store_at(f"{tmp_path}/other"))
    assert other.take(1, "host-a")
    both = LeaseHolder({"clicks": leases(), "views": other}, "host-b", expires_after=timedelta(hours=1))
    assert both.try_take("clicks")
    assert not both.try_take("views")
    both.close()
    seen = leases().look()
    assert seen is not None
    assert seen.released


def test_a_lease_that_was_removed_is_put_anew_by_its_holder(executor_manager: Keeper) -> None:
    first, two = executor_manager.make(), executor_manager.make()
    assert first.take(4, "a")
    executor_manager.remove()
    assert first.renew(4, "a")
    newest = two.look()
    assert newest is not None
    assert (newest.epoch, newest.holder) == (4, "a")
    executor_manager.remove()
    assert two.take(7, "b")
    assert not first.renew(4, "a"), "who came meanwhile has it"


def test_leases_that_were_removed_go_on_above_what_the_table_knows(leases: Callable[[], Leases]) -> None:
    held = LeaseHolder({"clicks": leases()}, "host-a", expires_after=SHORT, epoch_floor=lambda _: 6)
    assert take(held)
    assert held.epochs == {"clicks": 7}
    held.close()
    again = LeaseHolder({"clicks": leases()}, "host-b", expires_after=SHORT, epoch_floor=lambda _: 6)
    assert take(again)
    assert again.epochs == {"clicks": 8}
    again.close()


def test_a_take_over_has_the_lease_at_once_and_the_loser_waits_while_it_is_renewed(
    leases: Callable[[], Leases],
) -> None:
    first = LeaseHolder({"clicks": leases()}, "host-a", expires_after=SHORT)
    second = LeaseHolder({"clicks": leases()}, "host-b", expires_after=SHORT)
    assert take(first)
    begin = datetime.now(UTC)
    assert second.take_over("clicks")
    assert second.epochs == {"clicks": 2}
    assert first.has_lost("clicks")
    assert [(loss.pipeline, loss.epoch, loss.holder) for loss in first.take_losses()] == [("clicks", 1, "host-b")]
    assert first.losses["clicks"] == 1
    until_s = time.monotonic() + 2 * SHORT.total_seconds()
    while time.monotonic() < until_s:
        assert not first.try_take("clicks"), "as long as the other renews it"
        time.sleep(SHORT.total_seconds() / 8)
    wait = first.lease_wait("clicks")
    assert wait is not None
    assert wait.reason.startswith("host-b has its lease since 20")
    assert abs(wait.since - begin) < SHORT
    assert second.take_losses() == [], "nobody took it back"
    second.close()
    assert first.try_take("clicks"), "what is given back is taken at once"
    assert first.epochs == {"clicks": 3}
    assert first.lease_wait("clicks") is None
    first.close()


def test_of_many_who_take_over_at_once_one_keeps_it(leases: Callable[[], Leases]) -> None:
    holders = [LeaseHolder({"clicks": leases()}, f"host-{n}", expires_after=timedelta(hours=1)) for n in range(6)]
    ready = threading.Barrier(len(holders))

    def take_over(holder: LeaseHolder) -> None:
        ready.wait()
        holder.take_over("clicks")

    threads = [threading.Thread(target=take_over, args=[holder]) for holder in holders]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    for holder in holders:
        holder.renew()
    (winner,) = [holder for holder in holders if holder.epochs]
    seen = leases().look()
    assert seen is not None
    assert winner.epochs == {"clicks": seen.epoch}
    for holder in holders:
        holder.close()


def test_a_lease_shows_since_when_it_is_held(leases: Callable[[], Leases]) -> None:
    pipeline_leases = leases()
    before = datetime.now(UTC)
    assert pipeline_leases.take(1, "a")
    taken = leases().look()
    assert pipeline_leases.renew(1, "a")
    renewed = leases().look()
    assert taken is not None
    assert renewed is not None
    assert taken.taken_at is not None
    assert abs(taken.taken_at - before) < timedelta(seconds=60)
    assert renewed.taken_at == taken.taken_at, "a renewal is no new beginning"


@pytest.mark.parametrize(
    "taken_at", ["", "soon", "2026-11-27", "0001-01-01T00:00:00+05:00", "9999-12-31T23:00:00-05:00"]
)
def test_a_lease_with_a_time_that_nobody_can_show_is_read_without_it(tmp_path: Path, taken_at: str) -> None:
    store = store_at(str(tmp_path))
    store.put("_lease/000000000003", json.dumps({"holder": "other/1", "taken_at": taken_at}).encode())
    record = StoreLeases(store).look()
    assert record is not None
    assert (record.epoch, record.holder, record.taken_at) == (3, "other/1", None)


class SweptStore:
    """A store whose folder is removed by another after each object that is put there."""

    def __init__(self, store: Store) -> None:
        self._store = store

    def __getattr__(self, name: str) -> Any:
        return getattr(self._store, name)

    def put_if_absent(self, name: str, content: bytes) -> bool:
        """Put the object, which is gone then."""
        is_put = self._store.put_if_absent(name, content)
        self._store.delete(name)
        return is_put


def test_a_lease_that_is_removed_while_it_is_taken_is_not_taken(tmp_path: Path) -> None:
    swept = StoreLeases(cast("Store", SweptStore(store_at(str(tmp_path)))))
    assert not swept.take(1, "a"), "another process finds no lease, and takes it"
    assert swept.look() is None
    assert StoreLeases(store_at(str(tmp_path))).take(1, "b")


def test_an_object_whose_name_is_no_number_is_no_lease(tmp_path: Path) -> None:
    store = store_at(str(tmp_path))
    store.put("_lease/²", b"{}")
    assert StoreLeases(store).look() is None
    assert StoreLeases(store).take(1, "a")


HOLDER = """
import sys, time
from datetime import timedelta
from pathlib import Path
from headrace.writer.lease.holder import LeaseHolder
from headrace.writer.lease.kubernetes_api import Api
from headrace.writer.lease.kubernetes_lease import KubernetesLeases, LeaseContent
from headrace.writer.lease.lease import LeaseRecord, StoreLeases
from headrace.writer.storage.locations import store_at
held = LeaseHolder({"clicks": eval(sys.argv[1])}, "paused", expires_after=timedelta(seconds=2))
while not held.try_take("clicks"):
    time.sleep(0.05)
print("taken", flush=True)
while not (losses := held.take_losses()):
    time.sleep(0.05)
print("lost", losses[0].pipeline, "to", losses[0].holder, flush=True)
"""


@pytest.mark.slow
def test_a_holder_that_was_stopped_past_its_time_finds_that_it_has_lost(executor_manager: Keeper) -> None:
    process = subprocess.Popen(
        [sys.executable, "-c", HOLDER, executor_manager.program], stdout=subprocess.PIPE, text=True
    )
    assert process.stdout is not None
    try:
        assert process.stdout.readline() == "taken\n"
        os.kill(process.pid, signal.SIGSTOP)
        heir = LeaseHolder({"clicks": executor_manager.make()}, "heir", expires_after=SHORT)
        assert take(heir)
        os.kill(process.pid, signal.SIGCONT)
        assert process.stdout.readline() == "lost clicks to heir\n"
        assert process.wait(60) == 0
        assert heir.take_losses() == []
        heir.close()
    finally:
        process.kill()
        process.wait()
