"""Processes that race for names in buckets, and folders of very many names.

HEADRACE_TEST_RACES says how many names they race for (50); `make test-stores` takes a hundred.
"""

import json
import multiprocessing
import os
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from datetime import timedelta
from multiprocessing.synchronize import Barrier
from pathlib import Path
from queue import Queue
from typing import Any

import pytest

from headrace.writer.storage.locations import store_at
from headrace.writer.storage.settings import AzureSettings, GcsSettings, S3Settings, StoreSettings
from tests.servers.cloud_stores import AzureStore, GcsStore, fake_gcs
from tests.servers.faulty import LOST, RESET, SLOW_DOWN, proxy
from tests.servers.objects import ObjectServer

RACERS = 8
ROUNDS = int(os.environ.get("HEADRACE_TEST_RACES", "50"))
TIMEOUT = timedelta(seconds=30)

pytestmark = pytest.mark.slow


@pytest.fixture(params=["gs", "az"])
def server(request: pytest.FixtureRequest) -> GcsStore | AzureStore:
    return request.getfixturevalue({"gs": "on_gcs", "az": "on_azure"}[request.param])


@pytest.fixture(params=["s3", "gs", "az"])
def any_server(request: pytest.FixtureRequest) -> ObjectServer | GcsStore | AzureStore:
    return request.getfixturevalue({"s3": "on_s3", "gs": "on_gcs", "az": "on_azure"}[request.param])


def settings(url: str) -> StoreSettings:
    return StoreSettings(
        S3Settings(url, retry_timeout=TIMEOUT),
        gcs=GcsSettings(url, retry_timeout=TIMEOUT),
        azure=AzureSettings(None, url, TIMEOUT),
    )


def race(racer: int, location: str, url: str, rounds: int, barrier: Barrier, answers: "Queue[Any]") -> None:
    store = store_at(location, settings(url))
    for turn in range(rounds):
        barrier.wait(60)
        answers.put((turn, racer, store.put_if_absent(f"log/{turn}", b"%d" % racer)))


@contextmanager
def racers(location: str, url: str, rounds: int) -> Iterator["Queue[Any]"]:
    context = multiprocessing.get_context("spawn")
    barrier = context.Barrier(RACERS)
    answers: Any = context.Queue()
    processes = [
        context.Process(target=race, args=(racer, location, url, rounds, barrier, answers)) for racer in range(RACERS)
    ]
    for process in processes:
        process.start()
    try:
        yield answers
    finally:
        for process in processes:
            process.join(60)
            process.kill()


def winners(location: str, url: str, rounds: int) -> dict[int, list[int]]:
    """Return who got each name."""
    won: dict[int, list[int]] = {turn: [] for turn in range(rounds)}
    with racers(location, url, rounds) as answers:
        for _ in range(RACERS * rounds):
            turn, racer, is_put = answers.get(timeout=120)
            if is_put:
                won[turn].append(racer)
    return won


def test_of_eight_processes_that_race_for_a_name_one_gets_it(
    any_server: ObjectServer | GcsStore | AzureStore,
) -> None:
    location = f"{any_server.bucket()}/lake"
    won = winners(location, any_server.url, ROUNDS)
    assert len(won) == ROUNDS
    store = store_at(location, settings(any_server.url))
    for turn, who in won.items():
        stored = store.read(f"log/{turn}")
        assert stored is not None
        assert [stored.content] == [b"%d" % racer for racer in who]


def test_one_gets_it_also_where_answers_are_lost(server: GcsStore | AzureStore, tmp_path: Path) -> None:
    location = f"{server.bucket()}/lake"
    with proxy(f"http://{server.host}", tmp_path) as faults:
        faults.draw(7, 0.15, (SLOW_DOWN, RESET, LOST))
        won = winners(location, server.behind(faults.url).url, 15)
        assert faults.done[LOST] > 5
    store = store_at(location, settings(server.url))
    for turn, who in won.items():
        stored = store.read(f"log/{turn}")
        assert stored is not None
        assert [stored.content] == [b"%d" % racer for racer in who], json.dumps(won)


@pytest.fixture
def roomy_server(server: GcsStore | AzureStore, tmp_path: Path) -> Iterator[GcsStore | AzureStore]:
    """One whose puts take no longer the more names there are."""
    if isinstance(server, AzureStore) or os.environ.get("HEADRACE_TEST_GCS") != "fake-gcs":
        yield server
        return
    with fake_gcs(tmp_path, is_on_disk=True) as on_disk:
        yield on_disk


def test_ten_thousand_names_are_listed(roomy_server: GcsStore | AzureStore) -> None:
    store = store_at(f"{roomy_server.bucket()}/lake", settings(roomy_server.url))
    names = [f"{number:020}.json" for number in range(10_000)]
    with ThreadPoolExecutor(8) as threads:
        list(threads.map(lambda name: store.put(f"log/{name}", b"{}"), names))
    assert sorted(store.list("log")) == names
    assert list(store.list()) == ["log/"]
