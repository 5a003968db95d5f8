"""What happens when a store of Google or Azure throttles, breaks connections, loses answers, or is none for tables."""

import time
from collections.abc import Iterator
from datetime import timedelta

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from headrace.writer.batch.staging.parquet_files import Destination
from headrace.writer.storage.base import NotExclusive, OutcomeUnknown, Store, StoreError, Unanswered
from headrace.writer.storage.locations import store_at
from headrace.writer.storage.probe import ProbeFailed, StoreSilent, probe
from headrace.writer.storage.settings import AzureSettings, GcsSettings, StoreSettings
from tests.servers.cloud_stores import CLOUDS, PLAYED_SERVERS, SERVERS, AzureStore, GcsStore, told
from tests.servers.faulty import DENIED, ERROR_THEN_TAKEN, LOST, RESET, SILENT, SLOW_DOWN, UNKNOWN, Faults, proxy

pytestmark = pytest.mark.slow  # each cloud has a server and a proxy

RETRY_TIMEOUT = timedelta(seconds=1.5)  # so one request waits half a second for its answer
LONG_TIMEOUT = timedelta(seconds=10)
SECTIONS = {"gs": "gcs", "az": "azure"}
# What a failure says of a location that names no account.
IN_ACCOUNT = {"gs": "", "az": ", in account headracetest"}


def settings(cloud: str, url: str, retry_timeout: timedelta) -> StoreSettings:
    if cloud == "gs":
        return StoreSettings(gcs=GcsSettings(url, retry_timeout=retry_timeout))
    return StoreSettings(azure=AzureSettings(endpoint=url, retry_timeout=retry_timeout))


# Of servers that do as they are told, and of those of them that may copy late.
each_played_server = pytest.mark.parametrize("server", PLAYED_SERVERS, ids=CLOUDS, indirect=True, scope="module")
of_late_copies = pytest.mark.parametrize("server", PLAYED_SERVERS[1:], ids=CLOUDS[1:], indirect=True, scope="module")


@pytest.fixture(params=SERVERS, ids=CLOUDS, scope="module")
def server(request: pytest.FixtureRequest) -> GcsStore | AzureStore:
    found: GcsStore | AzureStore = request.getfixturevalue(request.param)
    return found


@pytest.fixture(scope="module")
def cloud(server: GcsStore | AzureStore) -> str:
    return "gs" if isinstance(server, GcsStore) else "az"


@pytest.fixture(scope="module")
def between(server: GcsStore | AzureStore, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Faults]:
    with proxy(f"http://{server.host}", tmp_path_factory.mktemp("proxy")) as found:
        yield found


@pytest.fixture
def faults(between: Faults, server: GcsStore | AzureStore, monkeypatch: pytest.MonkeyPatch) -> Iterator[Faults]:
    for name, value in server.environment.items():
        monkeypatch.setenv(name, value)
    between.reset()
    yield between
    between.calm()


@pytest.fixture
def url(server: GcsStore | AzureStore, faults: Faults) -> str:
    return server.behind(faults.url).url


@pytest.fixture
def location(server: GcsStore | AzureStore) -> str:
    return f"{server.bucket()}/lake"


@pytest.fixture
def store(cloud: str, url: str, location: str) -> Store:
    return store_at(location, settings(cloud, url, RETRY_TIMEOUT))


@pytest.fixture
def retrying_store(cloud: str, url: str, location: str) -> Store:
    return store_at(location, settings(cloud, url, LONG_TIMEOUT))


@pytest.mark.parametrize("fault", [SLOW_DOWN, RESET, LOST])
@pytest.mark.parametrize("count", [1, 2])
def test_a_passing_fault_is_tried_again(
    cloud: str, retrying_store: Store, faults: Faults, fault: str, count: int
) -> None:
    faults.first(fault, count)
    retrying_store.put("a", b"one")
    faults.first(fault, count, "GET")
    stored = retrying_store.read("a")
    assert stored is not None
    faults.first(fault, count, "HEAD")
    assert (stored.content, retrying_store.mark("a")) == (b"one", stored.mark)
    faults.first(fault, count, "GET")
    assert list(retrying_store.list()) == ["a"]
    faults.first(fault, count, "POST" if cloud == "az" else "DELETE")
    retrying_store.delete("a")
    assert faults.done[fault] == 5 * count
    assert list(retrying_store.list()) == []


@pytest.mark.parametrize("fault", [LOST, SILENT, ERROR_THEN_TAKEN])
def test_our_own_object_whose_answer_was_lost_is_known_as_ours(store: Store, faults: Faults, fault: str) -> None:
    faults.first(fault, 1)
    assert store.put_if_absent("log/1", b"ours")
    assert not store.put_if_absent("log/1", b"ours")


def test_anothers_object_of_the_same_content_is_known_as_anothers(retrying_store: Store, faults: Faults) -> None:
    assert retrying_store.put_if_absent("log/1", b"same")
    faults.first(LOST, 1)
    assert not retrying_store.put_if_absent("log/1", b"same")
    faults.first(RESET, 2)
    assert not retrying_store.put_if_absent("log/1", b"same")


def test_a_store_that_throttles_for_ever_is_a_clear_failure_within_its_patience(
    cloud: str, store: Store, faults: Faults
) -> None:
    faults.always(SLOW_DOWN)
    began = time.monotonic()
    with pytest.raises(Unanswered) as failed:
        store.read("a")
    assert time.monotonic() - began < 10 * RETRY_TIMEOUT.total_seconds(), "on a busy machine a try takes long"
    assert (failed.value.operation, failed.value.path) == ("read", f"{store.location}/a")
    assert f"503 SlowDown (Please reduce your request rate){IN_ACCOUNT[cloud]}, after" in str(failed.value)
    assert f"in 1.5 s ({SECTIONS[cloud]}.retry_timeout)" in str(failed.value)
    assert faults.done[SLOW_DOWN] <= 9, "pauses grow"
    with pytest.raises(Unanswered, match="503 SlowDown"):
        list(store.list())


def test_a_store_that_is_silent_is_unanswered(cloud: str, store: Store, faults: Faults) -> None:
    faults.always(SILENT)
    began = time.monotonic()
    with pytest.raises(Unanswered, match=f"no answer in time{IN_ACCOUNT[cloud]}, after"):
        store.read("a")
    assert time.monotonic() - began < 10 * RETRY_TIMEOUT.total_seconds(), "on a busy machine a try takes long"


def test_a_put_of_which_nothing_is_known_says_so(store: Store, faults: Faults) -> None:
    faults.always(LOST)
    with pytest.raises(OutcomeUnknown, match="the connection broke"):
        store.put_if_absent("log/1", b"ours")
    faults.calm()
    assert store.read("log/1") is not None


@pytest.mark.usefixtures("faults")  # for credentials
def test_a_put_that_never_left_is_known_not_to_be_there(cloud: str, location: str) -> None:
    nobody = store_at(location, settings(cloud, "http://127.0.0.1:9/headracetest", timedelta(seconds=0.6)))
    with pytest.raises(Unanswered, match=f"no connection .*Look at the network, and at .*{SECTIONS[cloud]}") as failed:
        nobody.put_if_absent("log/1", b"ours")
    assert not isinstance(failed.value, OutcomeUnknown)


def test_a_refused_request_fails_at_once_and_says_what_to_grant(
    cloud: str, store: Store, faults: Faults, server: GcsStore | AzureStore
) -> None:
    faults.always(DENIED)
    role = {"gs": r"roles/storage\.objectUser", "az": "Storage Blob Data Contributor"}[cloud]
    with pytest.raises(StoreError, match=f"403 SignatureDoesNotMatch .*{role}") as denied:
        store.put("a", b"")
    credentials = server.environment.keys() - server.address.keys()
    secrets = ["THE-KEY-ID", "THE-STRING", *(server.environment[name] for name in credentials)]
    assert not any(word in str(denied.value) for word in secrets)
    assert faults.done[DENIED] == 1
    for operation in (lambda: store.read("a"), lambda: store.delete("a"), lambda: list(store.list())):
        with pytest.raises(StoreError, match=f"403 SignatureDoesNotMatch .*{role}"):
            operation()
    with pytest.raises(StoreError, match=f"403.*{role}"):
        store.mark("a")


def test_a_bucket_that_is_missing_is_no_missing_object(cloud: str, url: str) -> None:
    missing = store_at(f"{cloud}://no-such-bucket/lake", settings(cloud, url, RETRY_TIMEOUT))
    answer = {"gs": "404 NoSuchBucket .*Make the bucket", "az": "404 ContainerNotFound.*Make the container"}[cloud]
    for operation in (
        lambda: missing.put("a", b""),
        lambda: missing.put_if_absent("a", b""),
        lambda: missing.read("a"),
        lambda: list(missing.list()),
        lambda: missing.move("a", "b"),
    ):
        with pytest.raises(StoreError, match=f"{answer}, or correct the location"):
            operation()


# ---- copies that Azure answers before they are complete


@of_late_copies
def test_an_object_is_moved_when_its_copy_is_complete(retrying_store: Store, server: AzureStore) -> None:
    retrying_store.put("staged/a", b"one")
    retrying_store.put("staged/empty", b"")
    with told(server, copy_ms=700):
        assert retrying_store.move("staged/a", "a")
        assert retrying_store.move("staged/empty", "empty")
    moved = [retrying_store.read(name) for name in ("a", "empty")]
    assert [stored and stored.content for stored in moved] == [b"one", b""]
    assert list(retrying_store.list("staged")) == []


@of_late_copies
def test_a_copy_that_does_not_end_keeps_its_source(store: Store, server: AzureStore) -> None:
    store.put("staged/a", b"one")
    with told(server, copy_ms=600_000):
        for answer in ("the copy of .*/staged/a is not complete", "409 PendingCopyOperation"):
            with pytest.raises(Unanswered, match=answer):
                store.move("staged/a", "a")
            kept = store.read("staged/a")
            assert kept is not None
            assert kept.content == b"one"
    assert store.move("staged/a", "a")
    moved = store.read("a")
    assert moved is not None
    assert moved.content == b"one"


# ---- the probe


@each_played_server
def test_a_store_that_ignores_the_condition_is_refused(store: Store, server: GcsStore | AzureStore) -> None:
    with (
        told(server, overwrites=True),
        pytest.raises(ProbeFailed, match=r"an object be created 5 times .*Choose a store that honours put-if"),
    ):
        probe(store, exclusive=True)
    assert server.keys(store.location) == []


@each_played_server
def test_a_store_that_says_yes_twice_is_refused(store: Store, server: GcsStore | AzureStore) -> None:
    with (
        told(server, answers_twice=True),
        pytest.raises(ProbeFailed, match=r"an object be created 5 times under one name"),
    ):
        probe(store, exclusive=True)
    assert server.keys(store.location) == []


def test_a_store_that_does_not_know_the_condition_is_refused(store: Store, faults: Faults) -> None:
    faults.always(UNKNOWN)
    with pytest.raises(ProbeFailed, match="501 NotImplemented"):
        probe(store, exclusive=True)
    faults.first(UNKNOWN, 1)
    with pytest.raises(NotExclusive, match="knows no conditional PUT"):
        store.put_if_absent("log/1", b"")


def test_a_store_that_is_silent_may_be_asked_again_later(store: Store, faults: Faults) -> None:
    faults.always(RESET)
    with pytest.raises(StoreSilent) as silent:
        probe(store, exclusive=True)
    assert silent.value.exit_code == 1


@pytest.mark.parametrize("seed", range(3))
def test_a_store_that_fails_now_and_then_passes_the_probe(retrying_store: Store, faults: Faults, seed: int) -> None:
    faults.draw(seed, 0.3)
    probe(retrying_store, exclusive=True)
    faults.calm()
    assert list(retrying_store.list()) == []


# ---- files


@pytest.mark.parametrize("seed", range(3))
def test_files_are_written_whole_through_a_store_that_fails(retrying_store: Store, faults: Faults, seed: int) -> None:
    rows = pa.table({"id": pa.array(range(2_000_000)), "more": pa.array(range(2_000_000, 0, -1))})
    to = Destination(retrying_store, ("hour",), "test", 2**30)
    faults.draw(seed, 0.2, (SLOW_DOWN, RESET, LOST))
    path, sink = to.open(("x",))
    pq.write_table(rows, sink, compression="none", use_dictionary=False)
    to.close(path, sink)
    filesystem, root = retrying_store.files()
    assert pq.read_table(f"{root}/{path}", filesystem=filesystem, partitioning=None).equals(rows)
    faults.calm()
    to.remove()
    assert list(retrying_store.list()) == []
