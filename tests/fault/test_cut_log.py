"""A log that is cut and grows again: an unclean election among three brokers, and a volume that was restored."""

import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest
from confluent_kafka.admin import AdminClient, NewTopic
from typer.testing import CliRunner

from tests import oracle
from tests.writing import Site
from writer.cli.main import app
from writer.demo.devstack.stack import Broker

pytestmark = [pytest.mark.slow, pytest.mark.timeout(900)]
FORMS = ["delta", "parquet", "iceberg"]
READERS = ["native", "spark"]


class Volume:
    """A broker of its own, and a copy of its data folder."""

    def __init__(self, folder: Path) -> None:
        self._data, self._copy = folder / "kafka" / "data", folder / "copy"
        self.broker = Broker(folder / "kafka")

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
    found = CliRunner().invoke(app, [*command[:1], str(site.config), *command[1:]], env={"COLUMNS": "200"})
    assert found.exit_code == code, found.output
    return " ".join(found.output.split())


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
    site.fill("clicks", 700, seed=10)
    oracle.check_rows(lake, "events")
    site.pipelines["events"]["on_data_loss"] = "stop"
    said = site.once(code=2)
    assert "[800, 1000) of clicks/0" in said
    assert "on_data_loss: record" in said
    oracle.check_exactly(lake, {("clicks", 1, 0): range(1000)})
    site.pipelines["events"]["on_data_loss"] = "record"
    assert "log_cut" in site.once()
    oracle.check_exactly(lake, {("clicks", 1, 0): range(1000), ("clicks", 2, 0): range(800, 1500)})
    audit = run(site, "audit")
    assert "offsets [800, 1,000)" in audit
    assert "It adds up" in audit
    assert "run_started" not in site.once(), "one cut is one incarnation"
