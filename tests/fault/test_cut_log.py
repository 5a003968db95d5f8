"""A log that is cut and grows again: an unclean election among three brokers, and a volume that was restored."""

import shutil
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from uuid import uuid4

import pytest
from confluent_kafka.admin import AdminClient, NewTopic
from typer.testing import CliRunner

from headrace.writer.cli.main import app
from headrace.writer.demo.devstack.stack import Broker
from tests.servers.login_broker import add_login
from tests.servers.three_brokers import ThreeBrokers, three_brokers
from tests.support import oracle
from tests.support.writer_process import Site

pytestmark = [pytest.mark.slow, pytest.mark.timeout(900)]
FORMS = ["delta", "parquet", "iceberg"]
READERS = ["native", "spark"]


class Volume:
    """A broker of its own, and a copy of its data folder."""

    def __init__(self, folder: Path) -> None:
        self._data, self._copy = folder / "kafka" / "data", folder / "copy"
        self.broker = add_login(Broker(folder / "kafka"))

    def create(self, topic: str, **settings: str) -> None:
        admin = AdminClient({"bootstrap.servers": self.broker.bootstrap})
        admin.create_topics([NewTopic(topic, 1, 1, config=settings)])[topic].result(60)

    def copy(self) -> None:
        """Copy the folder while the broker is stopped."""
        self.broker.stop()
        shutil.copytree(self._data, self._copy)
        self.broker.start()

    def restore(self) -> None:
        """Put the copy in the place of the folder."""
        self.broker.stop()
        shutil.rmtree(self._data)
        shutil.copytree(self._copy, self._data)
        self.broker.start()


@pytest.fixture
def volume(tmp_path: Path) -> Iterator[Volume]:
    made = Volume(tmp_path)
    with made.broker:
        yield made


def site_of(volume: Volume, root: Path, registry_url: str, reader: str) -> Site:
    return Site(root, volume.broker.bootstrap, registry_url, reader=reader)


def run(site: Site, *command: str, code: int = 0) -> str:
    """Run a command in this process. Returns what it says."""
    result = CliRunner().invoke(app, [*command[:1], str(site.config), *command[1:]], env={"COLUMNS": "200"})
    assert result.exit_code == code, result.output
    return " ".join(result.output.split())


@pytest.mark.cell("a volume of Kafka's is restored and grows", "between two runs, {reader} reader")
@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("reader", READERS)
def test_a_volume_that_was_restored_and_grew_goes_on_as_a_further_incarnation(
    volume: Volume, tmp_path: Path, registry_url: str, reader: str, form: str
) -> None:
    site = site_of(volume, tmp_path, registry_url, reader)
    volume.create("clicks")
    lake = site.pipeline("events", ["clicks"], form=form)
    site.fill("clicks", 500)
    site.once()
    site.fill("clicks", 300, seed=8)
    site.once()
    volume.copy()
    site.fill("clicks", 200, seed=9)
    site.once()
    assert "run_started" not in site.once(), "nothing changed"
    volume.restore()
    assert "the log of clicks/0 ends at 800, 200 offsets before the table" in run(site, "status")
    site.fill("clicks", 700, seed=10)
    oracle.check_rows(lake, "events")
    assert "is another one now: clicks/0" in run(site, "doctor", code=1)
    site.pipelines["events"]["on_data_loss"] = "stop"
    output = site.once(code=2)
    assert "[800, 1000) of clicks/0" in output
    assert "on_data_loss: record" in output
    oracle.check_exactly(lake, {("clicks", 1, 0): range(1000)})
    site.pipelines["events"]["on_data_loss"] = "record"
    assert "log_cut" in site.once()
    oracle.check_exactly(lake, {("clicks", 1, 0): range(1000), ("clicks", 2, 0): range(800, 1500)})
    audit = run(site, "audit")
    assert "offsets [800, 1,000)" in audit
    assert "It adds up" in audit
    assert "rows at [800, 1,000) of clicks/0, incarnation 1" in run(site, "status")
    assert "[800, 1000) of clicks/0, incarnation 1" in run(site, "doctor")
    assert "run_started" not in site.once(), "one cut is one incarnation"


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ThreeBrokers]:
    with three_brokers(tmp_path_factory.mktemp("brokers")) as brokers:
        yield brokers


class Cut:
    """A topic of two replicas whose log is cut by an unclean election: the leader dies with what it alone has."""

    def __init__(self, cluster: ThreeBrokers, site: Site) -> None:
        self.cluster, self.site = cluster, site
        self.topic = f"events-{uuid4().hex[:6]}"
        settings = {"unclean.leader.election.enable": "true", "min.insync.replicas": "1"}
        cluster.create(self.topic, [[2, 3]], **settings)

    def fill(self, count: int, seed: int) -> None:
        self.site.fill(self.topic, count, seed=seed)

    def leave_behind(self) -> None:
        """Stop the replica on broker 3: what comes from now on, broker 2 has alone."""
        self._wait(lambda: self.cluster.in_sync(self.topic) == {2, 3})
        self.cluster.brokers[2].stop()
        self._wait(lambda: self.cluster.in_sync(self.topic) == {2})

    def elect(self) -> None:
        """Let broker 3 lead, and broker 2 cut its log back to that of broker 3."""
        self.cluster.kill(2)
        self.cluster.brokers[2].start()
        self._wait(lambda: self.cluster.leader(self.topic) == 3)
        self.cluster.brokers[1].start()
        self._wait(lambda: self.cluster.in_sync(self.topic) == {2, 3})

    def _wait(self, condition: Callable[[], bool]) -> None:
        deadline_s = time.monotonic() + 90
        while not condition():
            assert time.monotonic() < deadline_s
            time.sleep(0.3)


@pytest.fixture
def cut(cluster: ThreeBrokers, tmp_path: Path, registry_url: str, reader: str) -> Cut:
    kafka = {"bootstrap_servers": cluster.bootstrap, "reader": reader, "request_timeout": "10 s"}
    kafka["lag_interval"] = "1 s"
    return Cut(cluster, Site(tmp_path, cluster.bootstrap, registry_url, overrides={"kafka": kafka}))


@pytest.mark.cell("an unclean election cuts a log below the table, and it grows", "between two runs, {reader} reader")
@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("reader", READERS)
def test_a_log_that_was_cut_below_the_table_goes_on_as_a_further_incarnation(cut: Cut, form: str) -> None:
    site, topic = cut.site, cut.topic
    lake = site.pipeline("events", [topic], form=form)
    cut.fill(600, 1)
    site.once()
    cut.fill(400, 2)
    cut.leave_behind()
    cut.fill(500, 3)
    site.once()
    cut.elect()
    oracle.check_rows(lake, "events")
    cut.fill(900, 4)
    assert "log_cut" in site.once()
    oracle.check_exactly(lake, {(topic, 1, 0): range(1500), (topic, 2, 0): range(1000, 1900)})
    assert "offsets [1,000, 1,500)" in run(site, "audit")
    cut.fill(100, 5)
    assert "run_started" not in site.once()
    oracle.check_exactly(lake, {(topic, 1, 0): range(1500), (topic, 2, 0): range(1000, 2000)})


@pytest.mark.cell("an unclean election cuts a log {where} the table, and it grows", "between two runs, {reader} reader")
@pytest.mark.parametrize("where", ["at", "above"])
@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("reader", READERS)
def test_a_log_that_was_cut_where_nothing_was_read_is_read_on(cut: Cut, form: str, where: str) -> None:
    site, topic = cut.site, cut.topic
    lake = site.pipeline("events", [topic], form=form)
    cut.fill(600, 1)
    site.once()
    cut.fill(400, 2)
    if where == "at":
        site.once()
    cut.leave_behind()
    cut.fill(500, 3)
    cut.elect()
    oracle.check_rows(lake, "events")
    cut.fill(900, 4)
    output = site.once()
    assert "log_cut" not in output
    assert "run_started" not in output
    oracle.check_exactly(lake, {(topic, 1, 0): range(1900)})


@pytest.mark.cell("an unclean election cuts a log below the table, and it grows", "while it is read, {reader} reader")
@pytest.mark.parametrize("reader", READERS)
def test_a_log_that_is_cut_under_a_running_writer_is_noticed_and_read_on(cut: Cut) -> None:
    site, topic = cut.site, cut.topic
    lake = site.pipeline("events", [topic], commit={"max_delay": "2 s"})
    cut.fill(600, 1)
    writer = site.start()
    writer.until(lambda: writer.commits() == 1)
    cut.fill(400, 2)
    writer.until(lambda: oracle.count(lake) == 1000)
    cut.leave_behind()
    cut.fill(500, 3)
    writer.until(lambda: oracle.count(lake) == 1500)
    cut.elect()
    oracle.check_rows(lake, "events")
    cut.fill(900, 4)
    writer.until(lambda: oracle.count(lake) >= 2400)
    output = writer.stop()
    assert "pipeline_restarting" in output
    oracle.check_exactly(lake, {(topic, 1, 0): range(1500), (topic, 2, 0): range(1000, 1900)})
