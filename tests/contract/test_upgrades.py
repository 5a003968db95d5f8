"""A table's log has a format; what may change on a live table is as docs/UPGRADES.md says, row by row."""

import json
import re
from collections.abc import Callable
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest

from headrace import bucketers
from headrace.writer.audit.audit import audit
from headrace.writer.clients.kafka import BrokerUnreachable, Topic
from headrace.writer.config.pipelines import Config
from headrace.writer.core.errors import ConfigError, SchemaChanged
from headrace.writer.core.offsets import TopicPartition
from headrace.writer.maintenance.local_pipeline import open_local_pipeline
from headrace.writer.maintenance.retention import PeriodicRetention, Retention, table_retentions
from headrace.writer.offsets import start_offsets
from headrace.writer.preflight.checks import host_checks
from headrace.writer.schemas.registry import source
from headrace.writer.sealing.retention_wait import RetentionWait
from headrace.writer.status import from_table
from headrace.writer.storage.settings import StoreSettings
from headrace.writer.table import locations
from headrace.writer.table.factory import main_table
from headrace.writer.table.log import snapshot
from headrace.writer.table.log.snapshot import FORMAT, KINDS, LogFormatTooNew
from tests.support.local_driver import Driver, log
from tests.support.sample_records import EVENT, NOW, Schemas, event
from tests.support.simulated_cluster import Cluster

ROOT = Path(__file__).parents[2]
P0 = TopicPartition("clicks", 1, 0)


def filled(root: Path, form: str = "delta") -> Driver:
    driver = Driver(root, form)
    driver.start()
    driver.carry([log({offset: event(offset) for offset in range(5)})], {0: 5})
    return driver


def of_newer_headrace(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let this headrace be one that knows the next format."""
    monkeypatch.setattr("headrace.writer.table.log.appender.FORMAT", FORMAT + 1)
    monkeypatch.setattr(snapshot, "FORMAT", FORMAT + 1)


def test_the_first_entry_of_headrace_gives_a_log_its_format(tmp_path: Path, form: str) -> None:
    driver = Driver(tmp_path, form)
    assert driver.table.snapshot().format == 0
    driver.start()
    (entry,) = driver.table.entries(driver.table.snapshot().version - 1)
    assert [a["txn"]["version"] for a in entry[1] if a.get("txn", {}).get("appId") == "clicks/format"] == [FORMAT]
    driver.carry([log({offset: event(offset) for offset in range(5)})], {0: 5})
    numbers = [a for _, actions in driver.table.entries(-1) for a in actions if "clicks/format" in str(a.get("txn"))]
    assert len(numbers) == 1, "it is set once"


def test_a_side_table_has_the_format_too(tmp_path: Path, form: str) -> None:
    driver = filled(tmp_path, form)
    driver.carry([log({5: b"broken"})], {0: 6})
    assert driver.side(driver.dead_letters).snapshot().format == FORMAT


def test_a_table_of_a_newer_format_is_neither_written_nor_read(
    tmp_path: Path, form: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    with monkeypatch.context() as newer:
        of_newer_headrace(newer)
        driver = filled(tmp_path, form)
        table = driver.table
        before = table.snapshot()
    reason = rf"has format {FORMAT + 1}, this headrace knows formats up to {FORMAT}"
    with pytest.raises(LogFormatTooNew, match=reason):
        Driver(tmp_path, form)
    for attempt in (
        lambda: table.begin({P0: 0}, {"clicks": ["uuid-1"]}),
        lambda: table.write(before, [], {}, {"kind": "columns"}),
        lambda: driver.carry([log({offset: event(offset) for offset in range(5, 9)})], {0: 9}),
        lambda: audit(driver.config, "clicks", since=None, deep=False),
        table.history,
    ):
        with pytest.raises(LogFormatTooNew, match=reason):
            attempt()
    assert table.state().version == before.version
    assert LogFormatTooNew.exit_code == 2
    assert findings(driver.config)["table"].startswith("failed the log of the table")
    view = from_table.view("clicks", driver.config, BrokerUnreachable("away"), NOW)
    assert (view.state, bool(re.search(reason, view.error or ""))) == ("unreadable", True)


def test_every_kind_of_entry_that_the_code_writes_is_listed() -> None:
    sources = [path.read_text() for path in (ROOT / "writer").rglob("*.py")]
    written_kind = re.compile(r'(?:\{\s*"kind": |^    kind: ClassVar\[str\] = )"(\w+)"', re.MULTILINE)
    kinds = {kind for source in sources for kind in written_kind.findall(source)}
    assert kinds == set(KINDS), "docs/adr/0047-log-format-1.md says when a new kind needs another format"


def test_the_page_names_the_format_and_every_kind() -> None:
    page = (ROOT / "docs" / "UPGRADES.md").read_text()
    assert f"has format {FORMAT}" in page
    assert set(KINDS) <= set(re.findall(r"`(\w+)`", page.partition("## What may change")[0]))


# What may change.


def findings(config: Config, name: str = "clicks") -> dict[str, str]:
    """What `validate` says of the tables."""
    found = host_checks.tables(name, config, host_checks.ProbedLocations(StoreSettings(), config.catalog_place))
    return {finding.check: f"{finding.status} {finding.message}. {finding.fix}" for finding in found}


def changed(driver: Driver, **pipeline: Any) -> Config:
    raw = driver.config.model_dump(mode="json", exclude_unset=True)
    raw["pipelines"]["clicks"] |= pipeline
    return Config.model_validate(raw)


def refused(driver: Driver, said: str, config: Config, name: str = "clicks") -> None:
    """Both `validate` and the first thing that a start does refuse it with the same sentence."""
    version = driver.table.snapshot().version
    assert findings(config, name)["table"].startswith("failed")
    assert said in findings(config, name)["table"]
    from headrace import bucketers
    from headrace.writer.config.sections.table import layout

    settings = config.pipelines[name]
    with pytest.raises(ConfigError, match=re.escape(said)):
        main_table(name, config).create(
            driver.table.snapshot().columns(), bucketers.build(settings.bucket).columns, layout(settings.bucket)
        )
    assert driver.table.snapshot().version == version


def begins(
    driver: Driver, cluster: Cluster, topics: list[str] | None = None, **pipeline: Any
) -> start_offsets.StartPosition:
    """Where a start with the changed configuration reads on."""
    config = changed(driver, **({"topics": topics} if topics else {}), **pipeline)
    found = {
        name: Topic(name, f"uuid-{index + 1}", len(cluster.held)) for index, name in enumerate(topics or ["clicks"])
    }
    table = main_table("clicks", config)
    assert findings(config)["table"].startswith("ok")
    settings = config.pipelines["clicks"]
    return start_offsets.find_start_position(settings, cluster, found, table.snapshot(), lambda _: None)  # type: ignore[arg-type]


def bucket_width(driver: Driver) -> None:
    refused(
        driver, "is bucketed by event_time, width 1 h, zone UTC, the configuration says event_time, width 2 h",
        changed(driver, bucket={"type": "event_time", "width": "2 h", "zone": "UTC"}),
    )  # fmt: skip


def bucket_zone(driver: Driver) -> None:
    bucket = {"type": "event_time", "width": "1 h", "zone": "Europe/Berlin"}
    refused(driver, "eep 'bucket' as it was, or choose a new location", changed(driver, bucket=bucket))


def bucket_column(driver: Driver) -> None:
    refused(driver, "eep 'bucket' as it was", changed(driver, bucket={"type": "field", "field": "note"}))


def renamed(driver: Driver) -> None:
    raw = driver.config.model_dump(mode="json", exclude_unset=True)
    raw["pipelines"]["views"] = raw["pipelines"].pop("clicks")
    refused(driver, "belongs to pipeline 'clicks'", Config.model_validate(raw), "views")


def other_format(driver: Driver) -> None:
    refused(driver, "holds a Delta table", changed(driver, table={"location": driver.lake, "format": "parquet"}))


def location(driver: Driver) -> None:
    config = changed(driver, table={"location": driver.lake + "_2"}, start="latest")
    assert findings(config)["table"].startswith("ok")
    table = main_table("clicks", config)
    table.create(driver.table.snapshot().columns(), ["hour"])
    position = start_offsets.find_start_position(
        config.pipelines["clicks"], Cluster((0, 9)), {"clicks": Topic("clicks", "uuid-1", 1)},  # type: ignore[arg-type]
        table.snapshot(), lambda _: None,
    )  # fmt: skip
    assert position.offsets == {("clicks", 0): 9}
    assert driver.table.snapshot().frontier(P0) == 5


def dead_letters(driver: Driver) -> None:
    driver.carry([log({5: b"broken"})], {0: 6})
    assert audit(driver.config, "clicks", since=None, deep=False).adds_up
    moved = changed(driver, table={"location": driver.lake, "dead_letters": driver.lake + "_bad"})
    assert "which the configuration does not name" in findings(moved)["dead_letters"]
    assert not audit(moved, "clicks", since=None, deep=False).adds_up


def inside(driver: Driver) -> None:
    for table in (
        {"location": driver.lake, "dead_letters": f"{driver.lake}/letters"},
        {"location": driver.lake, "raw": f"{driver.lake}/raw"},
        {"location": f"{driver.lake}/new"},
        {"location": str(Path(driver.lake).parent), "dead_letters": driver.dead_letters},
    ):
        with pytest.raises(ConfigError, match="is inside the "):
            locations.check_locations("clicks", changed(driver, table=table))


def topic_added(driver: Driver) -> None:
    position = begins(driver, Cluster((2, 9)), ["clicks", "installs"], start="latest")
    assert position.offsets == {("clicks", 0): 5, ("installs", 0): 2}


def topic_removed(driver: Driver) -> None:
    assert begins(driver, Cluster((0, 9)), ["installs"]).parts.keys() == {("installs", 0)}
    assert driver.table.snapshot().frontier(P0) == 5
    assert audit(driver.config, "clicks", since=None, deep=True).adds_up


def topic_back(driver: Driver) -> None:
    driver.table.begin({TopicPartition("installs", 1, 0): 0}, {"clicks": ["uuid-1"], "installs": ["uuid-2"]})
    position = begins(driver, Cluster((7, 9)), ["clicks", "installs"])
    assert position.offsets[("clicks", 0)] == 7
    assert [(r.part, r.start, r.end) for r in position.lost if r.part == P0] == [(P0, 5, 7)]


def partitions_added(driver: Driver) -> None:
    assert begins(driver, Cluster((0, 9), (0, 4)), start="latest").offsets == {("clicks", 0): 5, ("clicks", 1): 0}


def created_again(driver: Driver) -> None:
    config = changed(driver)
    position = start_offsets.find_start_position(
        config.pipelines["clicks"], Cluster((0, 9)), {"clicks": Topic("clicks", "uuid-9", 1)},  # type: ignore[arg-type]
        driver.table.snapshot(), lambda _: None,
    )  # fmt: skip
    assert (position.numbers, position.offsets) == ({"clicks": 2}, {("clicks", 0): 0})


def registry_url(driver: Driver) -> None:
    raw = driver.config.model_dump(mode="json", exclude_unset=True)
    config = Config.model_validate({**raw, "registry": {"url": "http://registry-2:8081"}})
    other = Schemas({1: {**EVENT, "name": "Other"}}, [1])
    assert 1 in open_local_pipeline("clicks", config, other).plan.schemas
    with pytest.raises(SchemaChanged):
        open_local_pipeline("clicks", driver.config, other)


def registry_file(driver: Driver) -> None:
    raw = driver.config.model_dump(mode="json", exclude_unset=True)
    path = Path(driver.lake).with_name("1.avsc")
    path.write_text(json.dumps(EVENT))
    driver.config = Config.model_validate({**raw, "registry": {"files": {"1": str(path)}}})
    driver._pipeline = open_local_pipeline("clicks", driver.config, source(driver.config.registry))
    driver.carry([log({5: event(5)})], {0: 6})
    path.write_text(json.dumps({**EVENT, "doc": "the same"}))
    open_local_pipeline("clicks", driver.config, source(driver.config.registry))
    path.write_text(json.dumps({**EVENT, "name": "Other"}))
    with pytest.raises(SchemaChanged):
        open_local_pipeline("clicks", driver.config, source(driver.config.registry))


def start(driver: Driver) -> None:
    assert begins(driver, Cluster((0, 9)), start="latest").offsets == {("clicks", 0): 5}


def event_time(driver: Driver) -> None:
    before = driver.table.buckets()
    rule = {"field": "at", "max_age": "30 d", "clocks": [{"shift": "-3 h"}]}
    again = Driver(Path(driver.lake).parents[1], event_time=rule)
    again.start()
    again.carry([log({5: event(0)})], {0: 6})
    assert set(before) < set(again.table.buckets())


def checkpoints(driver: Driver) -> None:
    raw = driver.config.model_dump(mode="json", exclude_unset=True)
    config = Config.model_validate({**raw, "checkpoints": raw["checkpoints"] + "_2"})
    assert findings(config)["table"].startswith("ok")
    assert main_table("clicks", config).snapshot().frontier(P0) == 5


def files(driver: Driver) -> None:
    settings = {
        "table": {"location": driver.lake, "entropy_bits": 2}, "roll": {"target_file_size": "1 MiB"},
        "commit": {"max_offsets": 10}, "memory": {"buffer": "1 MiB"},
    }  # fmt: skip
    assert begins(driver, Cluster((0, 9)), **settings).offsets == {("clicks", 0): 5}


def rates(driver: Driver) -> None:
    commit = {"max_records_per_second": 100, "max_bytes_per_second": "1 MiB"}
    scheduling = {"weight": 3, "min_share": 1}
    assert begins(driver, Cluster((0, 9)), commit=commit, scheduling=scheduling).offsets == {("clicks", 0): 5}


def route_added(driver: Driver) -> None:
    with pytest.raises(ConfigError, match="holds rows; the configuration wants a log of a route there"):
        driver.table.check(())


def with_raw(driver: Driver, **raw: Any) -> Driver:
    table = {"location": driver.lake, "raw": {"location": f"{driver.lake}_raw"} | raw}
    again = Driver(Path(driver.lake).parents[1], table=table)
    again.start()
    return again


def raw_added(driver: Driver) -> Driver:
    again = with_raw(driver)
    again.carry([log({5: None})], {0: 6})
    report = audit(again.config, "clicks", since=None, deep=True)
    assert (report.adds_up, report.reconciliation.raw) == (True, 1)
    return again


def raw_removed(driver: Driver) -> None:
    raw_added(driver)
    for stopped in (with_raw(driver, enabled=False, retention="1 d"), Driver(Path(driver.lake).parents[1])):
        stopped.start()
        end = (stopped.table.snapshot().frontier(P0) or 0) + 1
        stopped.carry([log({end - 1: event(end)})], {0: end})
        report = audit(stopped.config, "clicks", since=None, deep=True)
        assert (report.adds_up, report.reconciliation.raw) == (True, 1)
    at_raw = with_raw(driver, enabled=False, retention="1 d").config.at_raw("clicks")
    assert [
        len(table_retention.due(NOW + timedelta(days=9))) for table_retention in table_retentions("clicks", at_raw)
    ] == [1, 0]


def raw_moved(driver: Driver) -> None:
    raw_added(driver)
    again = with_raw(driver, location=f"{driver.lake}_raw_2")
    again.carry([log({6: event(6)})], {0: 7})
    report = audit(again.config, "clicks", since=None, deep=True)
    assert (report.adds_up, report.reconciliation.raw) == (True, 2)


def wait_of_retention(driver: Driver, kept_for: timedelta) -> RetentionWait | None:
    """Start with a retention nine days later, and drop what is due. Returns what waits."""
    now = NOW + timedelta(days=9)
    retention = Retention(driver.table, bucketers.build(driver.settings.bucket), kept_for)
    retention.settle(now)
    waits: list[RetentionWait | None] = []
    PeriodicRetention("clicks", [retention], lambda by_table: waits.extend(by_table.values()))(None, now)
    (wait,) = waits
    return wait


def retention_shorter(driver: Driver) -> None:
    wait = wait_of_retention(driver, timedelta(days=1))
    assert wait is not None
    assert wait.in_force is None
    assert driver.table.rows().count_rows() == 5
    Retention(driver.table, bucketers.build(driver.settings.bucket), timedelta(days=30)).accept(NOW)
    assert wait_of_retention(driver, timedelta(days=1)) is not None, "the longer one stays in force"
    assert driver.table.rows().count_rows() == 5


def retention_longer(driver: Driver) -> None:
    Retention(driver.table, bucketers.build(driver.settings.bucket), timedelta(days=30)).accept(NOW)
    assert wait_of_retention(driver, timedelta(days=60)) is None
    assert driver.table.rows().count_rows() == 5


CHANGES: dict[str, Callable[[Driver], None]] = {
    "bucket width": bucket_width, "bucket zone": bucket_zone, "bucket column or bucketer": bucket_column,
    "pipeline renamed": renamed, "`table.format`": other_format, "`table.location`": location,
    "`table.dead_letters`": dead_letters,
    "`table.raw` added": raw_added, "`table.raw` removed, or `enabled: false`": raw_removed,
    "`table.raw.location`": raw_moved,
    "any location, to one inside another table or around it": inside,
    "`route` added or removed": route_added, "topic added": topic_added, "topic removed": topic_removed,
    "topic removed, later added again": topic_back, "partitions added to a topic": partitions_added,
    "topic deleted and created again": created_again, "`start`": start,
    "`registry.url`": registry_url, "a schema in `registry.files`": registry_file,
    "`event_time.field`, `unit`, `clocks`": event_time, "`checkpoints`": checkpoints,
    "`table.entropy_bits`, `roll`, `commit`, `memory`": files,
    "`retention`, longer or removed": retention_longer,
    "`retention`, shorter, or the first of a table with old buckets": retention_shorter,
    "`commit.max_records_per_second`, `commit.max_bytes_per_second`, `scheduling`": rates,
}  # fmt: skip


@pytest.mark.parametrize("change", CHANGES)
def test_a_change_on_a_live_table_does_what_the_page_says(change: str, tmp_path: Path) -> None:
    CHANGES[change](filled(tmp_path))


def test_every_change_on_the_page_is_tried() -> None:
    page = (ROOT / "docs" / "UPGRADES.md").read_text().partition("## What may change")[2]
    rows = re.findall(r"^\| ([^|]+) \|", page, re.MULTILINE)
    assert set(rows) - {"change", "---"} == CHANGES.keys()
