"""Fixtures that start real servers.

HEADRACE_TEST_SERVERS=containers takes broker and registry from a container daemon instead. As `make test-stores` does,
HEADRACE_TEST_S3=minio takes MinIO for moto; HEADRACE_TEST_GCS=fake-gcs and HEADRACE_TEST_AZURE=azurite take
fake-gcs-server and Azurite for the servers in Python. HEADRACE_TEST_LOGIN=oauth lets all writers log in to Kafka by
short tokens.
"""

import gc
import os
import signal
import tempfile
import time
import uuid
from collections.abc import Callable, Generator, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol

import hypothesis
import psutil
import pytest

from tests.support import suites, workers

if TYPE_CHECKING:
    from tests.servers.cloud_stores import AzureStore, GcsStore
    from tests.servers.objects import ObjectServer
    from tests.support.writer_process import Site


def pytest_configure(config: pytest.Config) -> None:
    # What tests start imports the repository, and nothing of the folder that it happens to run in.
    os.environ["PYTHONSAFEPATH"] = "1"
    os.environ["PYTHONPATH"] = str(Path(__file__).parents[1])
    # Started in the background of a script, all of this ignores SIGINT, and so would the commands that tests interrupt.
    signal.signal(signal.SIGINT, signal.default_int_handler)
    # How long an example takes says more of the machine than of the code; what hangs ends by pytest's timeout.
    hypothesis.settings.register_profile("check", deadline=None, max_examples=25)
    hypothesis.settings.register_profile("long", deadline=None, max_examples=1_000)
    hypothesis.settings.load_profile("check")
    # Run last, so that what pytest collects at the end skips what is frozen. nanobind reports what is left then: the
    # classes of DuckDB that test modules name, if something leads to the tests. The callback of Hypothesis does: it
    # leads to the hook that loaded it, and so to the configuration of pytest.
    config.add_cleanup(gc.unfreeze)
    config.add_cleanup(gc.callbacks.clear)
    config.add_cleanup(drop_tracebacks)


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_auto_num_workers() -> int:
    """Return how many processes run the tests that wait for servers: `-n auto`."""
    return workers.count_waiting(len(os.sched_getaffinity(0)), psutil.virtual_memory().total)


def drop_tracebacks() -> None:
    """Drop the traceback of each error that is left, because some would never become garbage.

    An error of pydantic contains that of the validator, and hides it from the collection of garbage. The traceback of
    the validator's leads to the frame of the test, and its variable to the error of pydantic: a cycle, which keeps all
    tests, because each frame leads to pytest's session.
    """
    for value in gc.get_objects():
        if issubclass(type(value), BaseException):
            value.__traceback__ = None


@pytest.hookimpl(wrapper=True)
def pytest_collection() -> Generator[None, object, object]:
    # Hardly anything that collection makes is garbage before its end.
    gc.disable()
    try:
        return (yield)
    finally:
        gc.enable()


@pytest.hookimpl(tryfirst=True)  # before -m is looked at
def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    config.stash[suites.COLLECTED] = [item.nodeid for item in items]
    config.stash[suites.IN_MAKE_SLOW] = suites.sort(items)


def pytest_collection_finish() -> None:
    # What collection made stays to the end: each full collection of garbage would look at all of it again.
    gc.collect()
    gc.freeze()


@pytest.fixture
def scratch(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Local disk of this test's own for what tasks spill. A vacuum removes what lies there."""
    folder = tmp_path / "scratch"
    folder.mkdir()
    monkeypatch.setattr(tempfile, "tempdir", str(folder))
    return folder


class HasBootstrap(Protocol):
    @property
    def bootstrap(self) -> str: ...


class HasUrl(Protocol):
    @property
    def url(self) -> str: ...


class Servers(Protocol):
    """What tests may use of the servers, wherever they come from."""

    @property
    def broker(self) -> HasBootstrap: ...

    @property
    def registry(self) -> HasUrl: ...


@dataclass(frozen=True)
class Bootstrap:
    bootstrap: str


@dataclass(frozen=True)
class Url:
    url: str


@dataclass(frozen=True)
class Containers:
    broker: Bootstrap
    registry: Url


@contextmanager
def embedded(directory: Path) -> Iterator[Servers]:
    from headrace.writer.demo.devstack.stack import Stack
    from tests.servers.login_broker import add_login

    servers = Stack(directory)
    add_login(servers.broker)
    with servers as stack:
        yield stack


@contextmanager
def containers() -> Iterator[Servers]:
    from testcontainers.community.kafka import KafkaContainer
    from testcontainers.core.container import DockerContainer
    from testcontainers.core.docker_client import DockerClient
    from testcontainers.core.wait_strategies import HttpWaitStrategy

    from docker.errors import DockerException
    from headrace.writer.demo.devstack import registry

    problem = ""
    try:
        DockerClient().client.ping()
    except DockerException as error:
        problem = str(error)
    if problem:
        pytest.fail(
            f"HEADRACE_TEST_SERVERS=containers, but no container daemon answers ({problem}). "
            "Start one, or unset HEADRACE_TEST_SERVERS to use the embedded servers.",
            pytrace=False,
        )
    port = 8080
    ready = HttpWaitStrategy(port, f"{registry.PATH}/subjects").for_status_code(200)
    apicurio = DockerContainer("apicurio/apicurio-registry:3.3.3").with_exposed_ports(port).waiting_for(ready)
    with KafkaContainer().with_kraft() as kafka, apicurio:
        url = f"http://{apicurio.get_container_host_ip()}:{apicurio.get_exposed_port(port)}{registry.PATH}"
        registry.set_compatibility(url, "BACKWARD")
        yield Containers(Bootstrap(kafka.get_bootstrap_server()), Url(url))


@pytest.fixture(scope="session")
def stack(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Servers]:
    """A broker and a registry for the whole session: `.broker.bootstrap`, `.registry.url`."""
    if os.environ.get("HEADRACE_TEST_SERVERS") == "containers":
        started = containers()
    else:
        started = embedded(tmp_path_factory.mktemp("servers"))
    with started as servers:
        yield servers
        # A client in a cycle, such as that of an error's traceback, ends before its broker does.
        gc.collect()


@pytest.fixture(scope="session")
def bootstrap(stack: Servers) -> str:
    return stack.broker.bootstrap


@pytest.fixture(scope="session")
def registry_url(stack: Servers) -> str:
    return stack.registry.url


@pytest.fixture(scope="session")
def topic(bootstrap: str) -> Callable[..., str]:
    """A factory of topics with names of their own: `topic(3, prefix="clicks", **{"retention.ms": "1000"})`."""
    from confluent_kafka.admin import AdminClient, NewTopic, TopicMetadata

    def create(partitions: int = 1, *, prefix: str = "topic", **settings: str) -> str:
        name = f"{prefix}-{uuid.uuid4().hex[:8]}"
        new = NewTopic(name, num_partitions=partitions, replication_factor=1, config=settings)
        # A client of this call alone: one that outlives the broker prints each connection that is refused.
        admin = AdminClient({"bootstrap.servers": bootstrap, "log_level": 0})
        admin.create_topics([new])[name].result(timeout=60)
        # A broker says that a topic is made, and a busy one knows of it a moment later.
        deadline_s = time.monotonic() + 60
        while len(admin.list_topics(timeout=60).topics.get(name, TopicMetadata()).partitions) < partitions:
            assert time.monotonic() < deadline_s, f"{name} is not there"
            time.sleep(0.05)
        return name

    return create


@pytest.fixture(autouse=True, scope="session")
def same_priority() -> Iterator[None]:
    """Let no command that a test calls lower the priority of this process, which no test could raise again."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(os, "nice", lambda _: 0)
        yield


@pytest.fixture(autouse=True, scope="session")
def no_waits_for_the_disk() -> Iterator[None]:
    """Let no file of this process wait until it is on the disk: tests kill processes, and cut no power."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(os, "fsync", lambda _: None)
        yield


@pytest.fixture(autouse=True, scope="session")
def documented_json() -> Iterator[None]:
    """Hold all JSON that a command prints in this process against docs/json_keys.yaml."""
    from headrace.writer.output import tables
    from tests.support import json_keys

    write = tables._print_json

    def checked(document: object, indent: int | None) -> None:
        json_keys.check(document)
        write(document, indent)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(tables, "_print_json", checked)
        yield


@pytest.fixture(autouse=True, scope="session")
def declared_exit_codes() -> Iterator[None]:
    """Hold the exit code of each command that a test invokes against those that its help lists."""
    from typer.testing import CliRunner, Result

    from headrace.writer.cli.main import app as headrace
    from tests.support import exit_codes

    invoke = CliRunner.invoke

    def checked(runner: CliRunner, app: object, arguments: Sequence[str] = (), **options: Any) -> Result:
        result = invoke(runner, app, arguments, **options)
        if app is headrace:
            exit_codes.check_result(arguments, result)
        return result

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(CliRunner, "invoke", checked)
        yield


@pytest.fixture
def site(tmp_path: Path, bootstrap: str, registry_url: str) -> "Site":
    """A configuration, a lake and checkpoints of its own."""
    from tests.support.writer_process import Site

    return Site(tmp_path, bootstrap, registry_url)


@pytest.fixture(scope="session")
def s3(tmp_path_factory: pytest.TempPathFactory) -> Iterator["ObjectServer"]:
    """A server that speaks S3, and credentials for it in the environment."""
    from tests.servers.catalogs import seaweedfs_objects
    from tests.servers.objects import CREDENTIALS, minio, moto

    kinds = {"moto": moto, "minio": minio, "seaweedfs": seaweedfs_objects}
    kind = kinds[os.environ.get("HEADRACE_TEST_S3", "moto")]
    with pytest.MonkeyPatch.context() as patch, kind(tmp_path_factory.mktemp("s3")) as server:
        for name, value in CREDENTIALS.items():
            patch.setenv(name, value)
        yield server


@pytest.fixture
def on_s3(s3: "ObjectServer", monkeypatch: pytest.MonkeyPatch) -> "ObjectServer":
    """The same, and every client of this test finds it."""
    monkeypatch.setenv("AWS_ENDPOINT_URL_S3", s3.url)
    return s3


@pytest.fixture(scope="session")
def gcs(tmp_path_factory: pytest.TempPathFactory) -> Iterator["GcsStore"]:
    """A server that speaks the interfaces of Google Cloud Storage."""
    from tests.servers.cloud_stores import fake_gcs, python_gcs

    kinds = {"python": python_gcs, "fake-gcs": fake_gcs}
    kind = kinds[os.environ.get("HEADRACE_TEST_GCS", "python")]
    with kind(tmp_path_factory.mktemp("gcs")) as server:
        yield server


@pytest.fixture
def on_gcs(gcs: "GcsStore", monkeypatch: pytest.MonkeyPatch) -> "GcsStore":
    """The same, and every client of object_store in this test finds it."""
    for name, value in gcs.environment.items():
        monkeypatch.setenv(name, value)
    return gcs


@pytest.fixture(scope="session")
def azure(tmp_path_factory: pytest.TempPathFactory) -> Iterator["AzureStore"]:
    """A server that speaks Azure's Blob API."""
    from tests.servers.cloud_stores import azurite, python_azure

    kinds = {"python": python_azure, "azurite": azurite}
    kind = kinds[os.environ.get("HEADRACE_TEST_AZURE", "python")]
    with kind(tmp_path_factory.mktemp("azure")) as server:
        yield server


@pytest.fixture(scope="session")
def played_azure(tmp_path_factory: pytest.TempPathFactory) -> Iterator["AzureStore"]:
    """Azure's server in Python, which a test may tell how to behave, for runs in which `azure` is Azurite."""
    from tests.servers.cloud_stores import python_azure

    with python_azure(tmp_path_factory.mktemp("played-azure")) as server:
        yield server


@pytest.fixture
def on_azure(azure: "AzureStore", monkeypatch: pytest.MonkeyPatch) -> "AzureStore":
    """The same, and every client of object_store in this test finds it and its key."""
    for name, value in azure.environment.items():
        monkeypatch.setenv(name, value)
    return azure
