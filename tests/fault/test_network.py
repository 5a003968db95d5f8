"""Links between hosts that break and heal: a driver, an executor or a supervisor is cut from what others reach."""

import re
import ssl
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from confluent_kafka.admin import AdminClient, NewTopic

from headrace.writer.demo.devstack.stack import Broker, Registry
from tests.servers import network_hosts
from tests.servers.leases import LeaseApi, account
from tests.servers.network_hosts import Host, Network
from tests.servers.objects import CREDENTIALS, ObjectServer, moto
from tests.servers.scripted import serve_script
from tests.servers.secured import Authority
from tests.servers.standalone import standalone
from tests.servers.three_brokers import three_brokers
from tests.support import oracle
from tests.support.cluster_driver import Driver, on_cluster
from tests.support.process import Process
from tests.support.supervisor_process import Supervised, supervise
from tests.support.writer_process import Site, Writer

pytestmark = [pytest.mark.slow, pytest.mark.timeout(900)]
CUT_S = 60
HOSTS = (
    "operator", "driver", "standby", "master", "executor", "broker", "second", "third", "registry", "store", "api",
)  # fmt: skip
# A supervisor in a pod finds its account where a kubelet mounts it; here, in a mount namespace of its own.
IN_POD = """
mount -t tmpfs none /run && mkdir -p /var/run/secrets/kubernetes.io/serviceaccount &&
mount --bind "$0" /var/run/secrets/kubernetes.io/serviceaccount && exec "$@"
"""


@pytest.fixture(scope="module")
def hosts() -> Iterator[Network]:
    """Hosts of this module's own; where they cannot be made, its tests are not run."""
    if missing := network_hosts.missing():
        pytest.skip(f"NOT RUN: {missing}")
    with network_hosts.network(*HOSTS) as made:
        yield made


@pytest.fixture(scope="module")
def registry(hosts: Network, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Registry]:
    """A registry on the host of its name."""
    registry = Registry(tmp_path_factory.mktemp("registry"), host=hosts["registry"].address)
    with hosts["registry"].enter():
        registry.start()
    yield registry
    registry.stop()


@pytest.fixture(scope="module")
def broker(hosts: Network, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Broker]:
    """A broker on the host of its name."""
    broker = Broker(tmp_path_factory.mktemp("broker"), host=hosts["broker"].address)
    with hosts["broker"].enter():
        broker.start()
    yield broker
    broker.stop()


@pytest.fixture
def store(hosts: Network, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[ObjectServer]:
    """A server that speaks S3 on the host of its name, and credentials for it in the environment."""
    for name, value in CREDENTIALS.items():
        monkeypatch.setenv(name, value)
    with ExitStack() as running:
        with hosts["store"].enter():
            server = running.enter_context(moto(tmp_path, hosts["store"].address))
        yield server


@pytest.fixture
def place(hosts: Network, tmp_path: Path, broker: Broker, registry: Registry) -> Iterator["Place"]:
    """A site whose driver has a host of its own; the test itself is on the operator's."""
    with hosts["operator"].enter():
        yield Place(hosts, Site(tmp_path, broker.bootstrap, registry.url))


@dataclass(frozen=True)
class Place:
    """A site whose driver has a host of its own."""

    hosts: Network
    site: Site

    def topic(self, name: str, partitions: int = 2) -> str:
        """Create a topic."""
        admin = AdminClient({"bootstrap.servers": self.site.bootstrap})
        admin.create_topics([NewTopic(name, partitions, 1)])[name].result(30)
        return name

    def start(self, **environment: str) -> Writer:
        """Start the writer on the driver's host."""
        with self.hosts["driver"].enter():
            return self.site.start(env=environment)

    def status(self, writer: Writer) -> dict[str, Any]:
        """Ask the driver on its own host how the pipeline is."""
        with self.hosts["driver"].enter():
            pipeline: dict[str, Any] = Driver(writer).status()["pipelines"]["events"]
        return pipeline

    def seconds_of_tasks(self, writer: Writer) -> float:
        """Return for how long the tasks of a batch have run; 0 while none do."""
        batch = self.status(writer)["batch"]
        return float(batch["phase_seconds"]) if batch and batch["phase"] == "tasks" else 0


def wait_for_commits(lake: Path, writer: Process, offsets: int) -> None:
    """Wait until so many offsets are committed to a table of local files."""
    writer.until(lambda: sum(oracle.frontier_of(lake, "events").values()) == offsets)


def copy_table(store: ObjectServer, location: str, folder: Path) -> Path:
    """Copy a table from the store to a folder, for the oracle."""
    store.download(location, folder)
    return folder


@dataclass(frozen=True)
class Account:
    """The verdicts of the oracle in one test, and where they are put down."""

    record: Callable[..., None]
    before: oracle.Tally

    def put(self, fault: str, moment: str, on: str) -> None:
        """Put down what was found by now as one cell."""
        verdicts = oracle.tally.since(self.before)
        assert verdicts.looks, "a cell that no reader looked at before the link was whole"
        assert verdicts.checks, "a cell without a verdict of the oracle"
        self.record(
            fault=fault, moment=moment, on=f"{on}, a host for each", times=1, seen_twice=verdicts.seen_twice,
            records=verdicts.records, lost=verdicts.lost, twice=verdicts.twice,
        )  # fmt: skip


@pytest.fixture
def cell(record: Callable[..., None]) -> Account:
    """Account of this test for the table of faults."""
    return Account(record, oracle.tally.copy())


@pytest.mark.parametrize("reader", ["native", "spark"])
def test_a_driver_cut_from_one_broker_of_three_names_it_and_goes_on_when_it_is_back(
    hosts: Network, registry: Registry, tmp_path: Path, cell: Account, reader: str
) -> None:
    with ExitStack() as running:
        running.enter_context(hosts["operator"].enter())
        brokers = [hosts[name] for name in ("broker", "second", "third")]
        cluster = running.enter_context(three_brokers(tmp_path / "brokers", brokers))
        site = Site(tmp_path, cluster.bootstrap, registry.url, reader=reader)
        lake = site.pipeline("events", ["clicks"], commit={"max_delay": "2 s"})
        cluster.create("clicks", [[2, 3], [3, 2]])
        sent = site.fill("clicks", 2_000)
        writer = running.enter_context(Place(hosts, site).start())
        wait_for_commits(lake, writer, sent)
        with hosts.cut("driver", "third"):
            sent += site.fill("clicks", 2_000, seed=8)
            time.sleep(CUT_S)
            oracle.check_rows(lake, "events")
            failures = re.findall("lag_measurement_failed.*", writer.output())
            silent = rf"broker 3 at {cluster.brokers[2].bootstrap}(, which leads clicks/1,)? does not answer"
            assert failures
            assert all(re.search(silent, failure) for failure in failures), failures
        wait_for_commits(lake, writer, sent)
        output = writer.stop()
        assert "pipeline_restarting" not in output
        oracle.check(lake, "events", site.ends("clicks"))
    cell.put("a driver is cut from one broker of three", "for a minute", f"Spark, Kafka, Delta, {reader} reader")


def test_a_driver_cut_from_the_registry_names_it_and_holds_a_batch_with_a_new_schema(
    place: Place, cell: Account
) -> None:
    site, name = place.site, place.topic("wider")
    lake = site.pipeline("events", [name], commit={"max_delay": "1 s"})
    site.fill(name, 500)
    with place.start() as writer:
        wait_for_commits(lake, writer, 500)
        with place.hosts.cut("driver", "registry"):
            site.send(name, site.values(name, 300, seed=8, kind="clicks_2"))
            words = (
                f"registry_unreachable pipeline=events holding=batch error='the schema registry at {site.registry_url}"
            )
            writer.until(lambda: words in writer.output())
            oracle.check_rows(lake, "events")
            assert sum(oracle.frontier_of(lake, "events").values()) == 500, "the batch is held"
        wait_for_commits(lake, writer, 800)
        assert "pipeline_restarting" not in writer.stop()
    oracle.check(lake, "events", site.ends(name))
    assert oracle.rows(lake, "count(*)", "WHERE referrer_campaign IS NOT NULL") == [(300,)]
    cell.put("a driver is cut from the registry", "while a new schema arrives", "Spark, Kafka, Delta")


@pytest.mark.parametrize("moment", ["before_stage", "before_commit"])
def test_a_driver_cut_from_the_store_amid_a_batch_commits_it_once_when_the_store_is_back(
    place: Place, store: ObjectServer, tmp_path: Path, cell: Account, moment: str
) -> None:
    site, flag = place.site, tmp_path / "held"
    name, location = place.topic(f"stored-{moment}"), f"{store.bucket()}/lake/events"
    site.overrides = {"s3": {"endpoint": store.url}}
    site.pipeline("events", [name], commit={"max_delay": "1 s"}, table={"location": location})
    site.fill(name, 1_000)
    with place.start(HEADRACE_FAULT=f"{moment}:2:{flag}") as writer:
        writer.until(lambda: writer.commits() == 1)
        site.fill(name, 1_000, seed=8)
        writer.until(flag.exists)
        with place.hosts.cut("driver", "store"):
            flag.unlink()
            time.sleep(CUT_S)
            lake = copy_table(store, location, tmp_path / "amid" / "events")
            oracle.check_rows(lake, "events")
            assert sum(oracle.frontier_of(lake, "events").values()) == 1_000
        writer.until(lambda: writer.committed_records() == 2_000)
        assert "pipeline_restarting" not in writer.stop()
    oracle.check(copy_table(store, location, tmp_path / "copy" / "events"), "events", site.ends(name))
    cell.put("a driver is cut from the store", f"`{moment}`, for a minute", "Spark, Kafka, S3, Delta")


@pytest.mark.parametrize("network_timeout", ["20s", "120s"])
def test_an_executor_cut_from_the_driver_and_not_from_the_store_does_no_harm(
    place: Place, store: ObjectServer, tmp_path: Path, cell: Account, network_timeout: str
) -> None:
    site, hosts = place.site, place.hosts
    name, location = place.topic(f"executed-{network_timeout}", 4), f"{store.bucket()}/lake/events"
    site.overrides = {"s3": {"endpoint": store.url}}
    site.pipeline(
        "events", [name], commit={"max_delay": "1 s"}, table={"location": location},
        roll={"target_file_size": "16 KiB"},
        bucket={"type": "tests.support.slow_bucketer:SlowBucketer", "records_per_second": 100},
    )  # fmt: skip
    sent = site.fill(name, 4_000)
    with standalone(tmp_path / "cluster", cores=1, host=hosts["master"]) as cluster:
        cluster.add_worker(1, host=hosts["executor"])
        on_cluster(site, cluster.url, max_executors=2)
        site.overrides["spark"]["conf"] |= {
            "spark.driver.host": hosts["driver"].address, "spark.driver.bindAddress": hosts["driver"].address,
            "spark.network.timeout": network_timeout, "spark.network.timeoutInterval": "5s",
            "spark.executor.heartbeatInterval": "5s",
        }  # fmt: skip
        with place.start() as writer:
            writer.until(lambda: writer.output().count("executor_added") == 2)
            writer.until(lambda: place.seconds_of_tasks(writer) > 5)
            with hosts.cut("driver", "executor"):
                time.sleep(CUT_S)
                oracle.check_rows(copy_table(store, location, tmp_path / "amid" / "events"), "events")
            sent += site.fill(name, 4_000, seed=8)
            writer.until(lambda: place.status(writer)["totals"]["records"]["read"] == sent, 300)
            output = writer.stop()
    # Within Spark's patience the executor's results come late; beyond it, others do its tasks anew.
    assert ("executor_lost" in output) == (network_timeout == "20s"), output
    assert "pipeline_restarting" not in output
    oracle.check(copy_table(store, location, tmp_path / "copy" / "events"), "events", site.ends(name))
    on = f"Spark on a cluster, S3, Delta, spark.network.timeout {network_timeout}"
    cell.put("an executor is cut from the driver, not from the store", "amid a batch, for a minute", on)


@contextmanager
def lease_keeper(place: Place, store: ObjectServer, lease: str, folder: Path) -> Iterator[Callable[[str], Supervised]]:
    """Let supervisors keep their lease so. Gives what starts one on a host, and ends it with the block."""
    environment, under = dict[str, str](), list[str]()
    with ExitStack() as running:
        if lease == "store":
            place.site.overrides |= {"checkpoints": f"{store.bucket()}/checkpoints", "s3": {"endpoint": store.url}}
        else:
            environment, under = running.enter_context(pod(place.hosts["api"], folder))

        def start(host: str) -> Supervised:
            with place.hosts[host].enter():
                return running.enter_context(supervise(place.site, env=environment, under=under))

        yield start


@contextmanager
def pod(host: Host, folder: Path) -> Iterator[tuple[dict[str, str], list[str]]]:
    """Serve leases as a Kubernetes API does. Gives a pod's environment, and the command that mounts its account."""
    authority = Authority(folder / "authority")
    certificate = authority.certificate("api", host=host.address)
    tls = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    tls.load_cert_chain(certificate.certificate, certificate.key)
    mounted = account(folder / "account", ca=authority.ca.read_bytes())
    with serve_script(LeaseApi().answer, tls, host) as script:
        environment = {"KUBERNETES_SERVICE_HOST": host.address, "KUBERNETES_SERVICE_PORT": script.url.split(":")[-1]}
        yield environment, ["unshare", "--mount", "sh", "-c", IN_POD, str(mounted)]


@pytest.mark.parametrize(("lease", "keeper"), [("kubernetes", "api"), ("store", "store")])
def test_a_supervisor_cut_from_its_lease_goes_on_until_another_takes_it(
    place: Place, store: ObjectServer, tmp_path: Path, cell: Account, lease: str, keeper: str
) -> None:
    site, hosts, name = place.site, place.hosts, place.topic(f"leased-{lease}")
    lake = site.pipeline("events", [name], commit={"max_delay": "1 s"})
    site.overrides["supervisor"] = {"port": 0, "lease_expiry": "6 s", "lease": lease}
    with lease_keeper(place, store, lease, tmp_path) as start:
        sent = site.fill(name, 1_000)
        first = start("driver")
        wait_for_commits(lake, first, sent)
        with hosts.cut("driver", keeper):
            first.until(lambda: "lease_renewal_failed" in first.output())
            time.sleep(12)  # two lives of a lease
        (words,) = re.findall(r"lease_renewal_failed .*", first.output())
        assert hosts[keeper].address in words
        sent += site.fill(name, 1_000, seed=8)
        wait_for_commits(lake, first, sent)
        assert "lease_lost" not in first.output(), "nobody else wanted it"
        second = start("standby")
        second.until(lambda: "lease_awaited" in second.output())
        assert second.drivers() == []
        with hosts.cut("driver", keeper):
            cut_s = time.monotonic()
            second.until(lambda: "lease_acquired" in second.output())
            sent += site.fill(name, 1_000, seed=9)
            wait_for_commits(lake, second, sent)
            oracle.check_rows(lake, "events")
            time.sleep(max(0, CUT_S - (time.monotonic() - cut_s)))
            sent += site.fill(name, 1_000, seed=10)
        first.until(lambda: "driver_ended" in first.output() and "lease_awaited" in first.output())
        wait_for_commits(lake, second, sent)
        # Its /status answers inside its own host alone.
        (awaited,) = re.findall(r"lease_awaited .*", first.output())
        assert f"/{second.process.pid}" in awaited
        assert second.stop() == 0, second.output()
        sent += site.fill(name, 500, seed=11)
        wait_for_commits(lake, first, sent)
        assert first.stop() == 0, first.output()
        oracle.check(lake, "events", site.ends(name))
    leases = [entry["lease"] for entry in oracle.replay(lake).commits if entry["kind"] in ("start", "batch")]
    assert leases == sorted(leases), "nothing of the loser comes after"
    cell.put("a supervisor is cut from its lease", f"for a minute, kept in the {keeper}", "Spark, Kafka, Delta")
