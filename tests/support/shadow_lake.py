"""A lake with a table and its shadow, whose writers run without Spark and Kafka."""

import json
from collections.abc import Mapping
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
import yaml
from pyiceberg.catalog import load_catalog
from typer.testing import CliRunner

from headrace.writer.cli.main import app
from headrace.writer.config.loader import load
from headrace.writer.config.pipelines import Config
from headrace.writer.core.errors import HeadraceError
from headrace.writer.core.offsets import TopicPartition
from headrace.writer.maintenance.migration.shadow import shadow_start_offsets, shadow_writer_config
from tests.support.local_driver import Driver, log, pipeline_config
from tests.support.sample_records import EVENT, NOW, event

FORMS = ["delta", "parquet", "iceberg"]
HOUR = timedelta(hours=1)
SPECS = {"Event": {"where": "id <> 3", "derive": {"note": "'n' || id"}}}


def values(start: int, end: int) -> dict[int, bytes | None]:
    """Rows of three hours, and of seven records one that cannot be decoded."""
    return {
        offset: b"\0\0\0\0\1cut" if offset % 7 == 5 else event(offset, event_time=NOW - (offset % 3) * HOUR)
        for offset in range(start, end)
    }


class Lake:
    """A table with a history, its configuration file, that of its shadow, and what its topic holds."""

    def __init__(
        self,
        root: Path,
        form: str,
        *,
        end: int = 20,
        start: int = 0,
        home: str = "",
        sections: Mapping[str, Any] | None = None,
        **settings: Any,
    ) -> None:
        """`home`: where the tables lie, in place of `root`. `sections`: of the configuration, beside the pipeline."""
        root.mkdir(exist_ok=True)
        home = home or str(root)
        self.root = root
        self.place = f"{home}/elsewhere/v2"
        self.topic = values(0, 200)
        table = {"location": f"{home}/lake/clicks", "raw": {"location": f"{home}/lake/raw"}}
        more = {"limits": {"max_failed_ratio": 1}, "seal": {"late": "late_table"}, **settings}
        config = pipeline_config(root, form, table=table, sections=sections, **more)
        raw = config.model_dump(mode="json", exclude_unset=True)
        (root / "1.avsc").write_text(json.dumps(EVENT))
        raw["registry"] = {"files": {1: str(root / "1.avsc")}}
        clicks = raw["pipelines"]["clicks"]
        clicks["hooks"] = [{"type": "webhook", "name": "told", "url": "http://127.0.0.1:1/"}]
        self.file = root / "pipelines.yaml"
        self.other = root / "new.yaml"
        self.file.write_text(yaml.safe_dump(raw))
        self.other.write_text(yaml.safe_dump({**raw, "pipelines": {"clicks": {**clicks, "specs": SPECS}}}))
        self.first = Driver(root, configuration=load(self.file))
        self.first.start(offset=start)
        self.to(self.first, end)

    def to(self, driver: Driver, end: int, **more: Any) -> None:
        """Carry what the topic holds."""
        frontier = driver.table.snapshot().frontier(TopicPartition("clicks", 1, 0)) or 0
        driver.carry([log({offset: self.topic[offset] for offset in range(frontier, end)})], {0: end}, **more)

    def config_of(self, begin: str = "start") -> Config:
        """The configuration of the shadow."""
        offsets = shadow_start_offsets(load(self.file), "clicks", begin)
        return shadow_writer_config(load(self.file), load(self.other), "clicks", self.place, offsets)

    def shadow(self, begin: str = "start") -> Driver:
        """Start the shadow's writer."""
        driver = Driver(self.root, configuration=self.config_of(begin))
        driver.start(offset=driver.settings.start["offsets"]["clicks"][0])
        return driver

    def promote(self, *flags: str, code: int = 0) -> Any:
        done = CliRunner().invoke(
            app, ["promote", str(self.file), "--with", str(self.other), "--shadow", self.place, *flags]
        )
        if code:
            assert isinstance(done.exception, HeadraceError), (done.output, done.exception)
            assert done.exception.exit_code == code
            return str(done.exception)
        assert done.exit_code == 0, (done.output, done.exception)
        return json.loads(done.stdout) if "--json" in flags else done.output

    def write_promoted_config(self, other: Path | None = None) -> Path:
        """The configuration file of the pipeline from now on, as `promote` says."""
        raw = yaml.safe_load((other or self.other).read_text())
        for key, value in self.promote("--json")["changes"].items():
            *names, last = key.split(".")
            section = raw
            for name in names:
                section = section[name]
            section[last] = None if value == "null" else value
        file = self.root / "promoted.yaml"
        file.write_text(yaml.safe_dump(raw))
        return file


def contents(root: Path) -> dict[str, bytes]:
    """All that the first table and its checkpoints are."""
    return {
        str(path): path.read_bytes()
        for name in ("lake", "checkpoints")
        for path in (root / name).rglob("*")
        if path.is_file()
    }


def names(root: Path) -> dict[str, str]:
    """The tables of the catalog, and where each lies."""
    if not (root / "catalog.db").exists():
        return {}
    catalog = load_catalog("headrace", type="sql", uri=f"sqlite:///{root}/catalog.db")
    return {name[-1]: catalog.load_table(name).metadata_location for name in catalog.list_tables("headrace")}


def run_diff(lake: Lake, *flags: str) -> dict[str, Any]:
    result = CliRunner().invoke(
        app, ["diff", str(lake.file), "--with", str(lake.other), "--shadow", lake.place, "--json", *flags]
    )
    assert result.exit_code in (0, 1), (result.output, result.exception)
    return dict(json.loads(result.stdout))


@pytest.fixture(name="writer")
def writer_fixture(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """Carry what `headrace shadow` would, without Spark, up to the last of these ends; 0: it fails."""
    ends = [20]

    def run(file: Any, *, once: bool) -> int:
        driver = Driver(Path(), configuration=file.config)
        driver.start(offset=driver.settings.start["offsets"]["clicks"][0])
        frontier = driver.table.snapshot().frontier(TopicPartition("clicks", 1, 0)) or 0
        if ends[-1] > frontier:
            driver.carry([log({o: v for o, v in values(0, ends[-1]).items() if o >= frontier})], {0: ends[-1]})
        return 0 if once and ends[-1] else 1

    monkeypatch.setattr("headrace.writer.cli.maintain.shadow.run_writer", run)
    monkeypatch.setattr("headrace.writer.core.logging.set_up", lambda: None)
    return ends


def run_shadow(lake: Lake, *flags: str, code: int = 0) -> str:
    arguments = ["shadow", str(lake.file), "--with", str(lake.other), "--location", lake.place, *flags]
    result = CliRunner().invoke(app, arguments)
    assert result.exit_code == code, (result.output, result.exception)
    return result.stdout
