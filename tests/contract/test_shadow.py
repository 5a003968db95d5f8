"""A shadow takes the offsets of a table to a second one and leaves the first as it is; promote switches the two."""

import json
import shutil
from collections.abc import Mapping
from contextlib import suppress
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
import yaml
from pyiceberg.catalog import load_catalog
from pyiceberg.catalog.sql import SqlCatalog
from typer.testing import CliRunner

from tests import oracle
from tests.carried import Died as DriverDied, Driver, configured, log
from tests.effects import Died, dying
from tests.looking import EVENT, NOW, event
from writer.audit.audit import audit
from writer.cli.main import app
from writer.cli.table.shadow import offsets_of
from writer.config.loader import load
from writer.config.pipelines import Config
from writer.core.errors import ConfigError, HeadraceError
from writer.core.offsets import OffsetRange, TopicPartition
from writer.storage.local import LocalStore
from writer.table.factory import existing_table
from writer.table.iceberg.catalog import catalog_client
from writer.table.locations import shadow_of
from writer.table.log.appender import Superseded
from writer.table.log.foreign_writes import CommitFailed
from writer.table.log.operations import Gap
from writer.table.log.snapshot import FORMAT, PROMOTED

FORMS = ["delta", "parquet", "iceberg"]
HOUR = timedelta(hours=1)
SPECS = {"Event": {"where": "id <> 3", "derive": {"note": "'n' || id"}}}


def values(start: int, end: int) -> dict[int, bytes | None]:
    """Rows of three hours, and of seven records one that cannot be decoded."""
    return {at: b"\0\0\0\0\1cut" if at % 7 == 5 else event(at, at=NOW - (at % 3) * HOUR) for at in range(start, end)}


class Lake:
    """A table with a history, its configuration file, that of its shadow, and what its topic holds."""

    def __init__(self, root: Path, form: str, *, end: int = 20, start: int = 0, **settings: Any) -> None:
        root.mkdir(exist_ok=True)
        self.root, self.place, self.topic = root, str(root / "elsewhere" / "v2"), values(0, 200)
        table = {"raw": {"location": str(root / "lake" / "raw")}}
        about = {"limits": {"failed_ratio_max": 1}, "seal": {"late": "late_table"}, **settings}
        made = configured(root, form, table=table, **about)
        raw = made.model_dump(mode="json", exclude_unset=True)
        (root / "1.avsc").write_text(json.dumps(EVENT))
        raw["registry"] = {"files": {1: str(root / "1.avsc")}}
        one = raw["pipelines"]["clicks"]
        one["hooks"] = [{"type": "webhook", "name": "told", "url": "http://127.0.0.1:1/"}]
        self.file, self.other = root / "pipelines.yaml", root / "new.yaml"
        self.file.write_text(yaml.safe_dump(raw))
        self.other.write_text(yaml.safe_dump({**raw, "pipelines": {"clicks": {**one, "specs": SPECS}}}))
        self.first = Driver(root, whole=load(self.file))
        self.first.start(at=start)
        self.to(self.first, end)

    def to(self, driver: Driver, end: int, **more: Any) -> None:
        """Carry what the topic holds."""
        at = driver.table.snapshot().frontier(TopicPartition("clicks", 1, 0)) or 0
        driver.carry([log({offset: self.topic[offset] for offset in range(at, end)})], {0: end}, **more)

    def config_of(self, begin: str = "start") -> Config:
        """The configuration of the shadow."""
        made = shadow_of(load(self.file), load(self.other), "clicks", self.place)
        return made.beginning("clicks", offsets_of(load(self.file), "clicks", begin))

    def shadow(self, begin: str = "start") -> Driver:
        """Start the shadow's writer."""
        driver = Driver(self.root, whole=self.config_of(begin))
        driver.start(at=driver.settings.start["offsets"]["clicks"][0])
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

    def promoted(self, other: Path | None = None) -> Path:
        """The configuration file of the pipeline from now on, as `promote` says."""
        raw = yaml.safe_load((other or self.other).read_text())
        for key, value in self.promote("--json")["changes"].items():
            *above, last = key.split(".")
            at = raw
            for name in above:
                at = at[name]
            at[last] = None if value == "null" else value
        file = self.root / "promoted.yaml"
        file.write_text(yaml.safe_dump(raw))
        return file


def contents(root: Path) -> dict[str, bytes]:
    """All that the first table and its checkpoints are."""
    return {str(path): path.read_bytes() for name in ("lake", "checkpoints") for path in (root / name).rglob("*")
            if path.is_file()}  # fmt: skip


def names(root: Path) -> dict[str, str]:
    """The tables of the catalog, and where each lies."""
    if not (root / "catalog.db").exists():
        return {}
    catalog = load_catalog("headrace", type="sql", uri=f"sqlite:///{root}/catalog.db")
    return {name[-1]: catalog.load_table(name).metadata_location for name in catalog.list_tables("headrace")}


def compared(lake: Lake, *flags: str) -> dict[str, Any]:
    done = CliRunner().invoke(
        app, ["diff", str(lake.file), "--with", str(lake.other), "--shadow", lake.place, "--json", *flags]
    )
    assert done.exit_code in (0, 1), (done.output, done.exception)
    return dict(json.loads(done.stdout))


@pytest.mark.parametrize("form", FORMS)
def test_a_shadow_writes_the_same_offsets_and_no_byte_of_the_first_changes(tmp_path: Path, form: str) -> None:
    lake = Lake(tmp_path, form)
    before, known = contents(tmp_path), names(tmp_path)
    driver = lake.shadow()
    lake.to(driver, 12)
    lake.to(driver, 25)
    driver.carry([log({25: event(25, at=NOW - 30 * HOUR)})], {0: 26})
    assert contents(tmp_path) == before
    assert known.items() <= names(tmp_path).items()
    assert names(tmp_path).keys() - known.keys() == (
        {"clicks_shadow", "v2_dead_letters", "v2_late", "v2_raw"} if form == "iceberg" else set()
    )
    assert {path.name for path in (tmp_path / "elsewhere").iterdir()} == {"v2", "v2_dead_letters", "v2_late", "v2_raw"}
    found = compared(lake)
    assert (found["offsets"], found["only_first"], found["only_second"]) == (20, 1, 0)
    assert found["columns"] == {"note": 16}
    assert audit(driver.config, "clicks", since=None, deep=True).adds_up
    assert contents(tmp_path) == before


def test_what_tells_others_is_off_and_places_are_its_own(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    lake = Lake(tmp_path, "delta", commit_offsets_to_group="told")
    raw = yaml.safe_load(lake.other.read_text())
    monkeypatch.setenv("TOLD", "http://127.0.0.1:1/")
    raw |= {"notifications": {"url_env": "TOLD"}, "http": {"port": 9643, "enabled": False}}
    raw["openlineage"] = {"url": "http://127.0.0.1:1/"}
    lake.other.write_text(yaml.safe_dump(raw))
    made = lake.config_of()
    one = made.pipelines["clicks"]
    assert (one.hooks, one.commit_offsets_to_group, made.notifications.url_env) == ([], None, None)
    assert (made.openlineage, made.opentelemetry) == (type(made.openlineage)(), type(made.opentelemetry)())
    assert (made.http.enabled, made.http.port, made.checkpoints) == (True, 0, f"{lake.place}_checkpoints")
    assert set(one.locations) == {lake.place + end for end in ("", "_dead_letters", "_late", "_raw")}
    assert one.specs == load(lake.other).pipelines["clicks"].specs


@pytest.mark.parametrize(
    ("place", "problem"),
    [
        ("lake/clicks", "is the table of pipeline 'clicks' itself"), ("lake/clicks/_v2", "neither may be inside"),
        ("lake", "neither may be inside"), ("link/clicks/v2", "neither may be inside"),
        ("lake/raw/x", "is the raw table"), ("lake/clicks_late", "is the late table"),
        ("checkpoints/clicks/v2", "is the checkpoints"), ("lake/clicks_dead_letters", "is the dead-letter table"),
    ],
)  # fmt: skip
def test_a_place_at_in_or_around_the_first_is_refused(tmp_path: Path, place: str, problem: str) -> None:
    lake = Lake(tmp_path, "delta")
    (tmp_path / "link").symlink_to(tmp_path / "lake")
    before = contents(tmp_path)
    lake.place = str(tmp_path / place)
    for words in (["shadow", "--location"], ["diff", "--shadow"], ["promote", "--shadow"]):
        done = CliRunner().invoke(app, [words[0], str(lake.file), words[1], lake.place])
        assert problem in str(done.exception), done.output
        assert isinstance(done.exception, ConfigError)
    assert contents(tmp_path) == before


def test_a_shadow_begins_where_it_is_told(tmp_path: Path) -> None:
    lake = Lake(tmp_path, "delta", start=4, end=9)
    version = lake.first.table.snapshot().version
    lake.to(lake.first, 20)
    config = load(lake.file)
    assert [offsets_of(config, "clicks", begin)["clicks"] for begin in ("start", str(version), "now")] == [
        {0: 4}, {0: 9}, {0: 20},
    ]  # fmt: skip
    lake.first.table.begin({TopicPartition("clicks", 2, 0): 3}, {"clicks": ["uuid-1", "uuid-2"]})
    assert offsets_of(config, "clicks", "now") == {"clicks": {0: 3}}, "of the topic that is there now"
    with pytest.raises(ConfigError, match="neither start, now nor a version"):
        offsets_of(config, "clicks", "yesterday")


@pytest.mark.parametrize("die", ["after_stage", "after_commit"])
def test_a_shadow_that_is_killed_goes_on_exactly_once(tmp_path: Path, die: str) -> None:
    lake = Lake(tmp_path, "delta")
    lake.to(lake.shadow(), 10)
    with pytest.raises(DriverDied):
        lake.to(lake.shadow("now"), 15, die=die)
    again = lake.shadow("now")
    lake.to(again, 20)
    assert again.table.snapshot().frontier(TopicPartition("clicks", 1, 0)) == 20, "a table that is there has its own"
    assert audit(again.config, "clicks", since=None, deep=True).adds_up
    dead = [offset for offset in range(20) if offset % 7 == 5]
    assert oracle.offsets(Path(lake.place))["clicks", 0] == [at for at in range(20) if at not in (3, *dead)]
    assert oracle.offsets(Path(again.dead_letters))["clicks", 0] == dead


@pytest.fixture
def writer(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """Carry what `headrace shadow` would, without Spark, up to the last of these ends; 0: it fails."""
    ends = [20]

    def run(file: Any, *, once: bool) -> int:
        driver = Driver(Path(), whole=file.config)
        driver.start(at=driver.settings.start["offsets"]["clicks"][0])
        at = driver.table.snapshot().frontier(TopicPartition("clicks", 1, 0)) or 0
        if ends[-1] > at:
            driver.carry([log({o: v for o, v in values(0, ends[-1]).items() if o >= at})], {0: ends[-1]})
        return 0 if once and ends[-1] else 1

    monkeypatch.setattr("writer.cli.table.shadow.run_writer", run)
    monkeypatch.setattr("writer.core.logging.set_up", lambda: None)
    return ends


def shadowed(lake: Lake, *flags: str, code: int = 0) -> str:
    words = ["shadow", str(lake.file), "--with", str(lake.other), "--location", lake.place, *flags]
    done = CliRunner().invoke(app, words)
    assert done.exit_code == code, (done.output, done.exception)
    return done.stdout


def test_the_command_says_what_the_shadow_has_and_what_to_do_next(tmp_path: Path, writer: list[int]) -> None:
    lake = Lake(tmp_path, "delta")
    writer.append(18)
    found = json.loads(shadowed(lake, "--json"))
    assert found["partitions"] == [
        {"topic": "clicks", "partition": 0, "start": 0, "end": 18, "first_end": 20, "gap": 0}
    ]
    assert (found["rows"], found["dead_letters"]) == (15, 2)
    assert found["diff"] == f"headrace diff {lake.file} --pipeline clicks --with {lake.other} --shadow {lake.place}"
    writer.append(20)
    shown = shadowed(lake)
    assert f"clicks: the shadow at {lake.place} has 16 rows, and 3 dead letters." in shown
    assert shown.endswith(f"Compare: {found['diff']}\n")
    writer.append(0)
    shadowed(lake, code=1)


# Promote.


@pytest.mark.parametrize("form", FORMS)
def test_promote_puts_the_shadow_in_the_place_of_the_first_and_no_writer_goes_on_there(
    tmp_path: Path, form: str
) -> None:
    lake = Lake(tmp_path, form)
    driver = lake.shadow()
    lake.to(driver, 22)
    before = contents(tmp_path)
    shown = lake.promote()
    named = "pipelines.clicks.table.name: headrace.clicks\n"
    assert (f"pipelines.clicks.table.location: {lake.place}\n" in shown, named in shown) == (True, form == "iceberg")
    assert "20 offsets that both tables committed: 0 rows equal, 16 different, 1 only in the first" in shown
    assert shown.endswith("Nothing was changed. The same with --yes does it.\n")
    assert contents(tmp_path) == before
    found = lake.promote("--yes", "--json")
    assert (found["done"], found["older"], found["diff"]["different"]) == (True, 0, 16)
    assert found["changes"]["pipelines.clicks.table.location"] == lake.place
    with pytest.raises(ConfigError, match=r"put the table at|lies at"):
        Driver(tmp_path, whole=load(lake.file))
    with pytest.raises((Superseded, HeadraceError), match=r"put the table at|lies at|dropped or renamed"):
        lake.to(lake.first, 25)
    sql = found["statements"]
    assert (sql != {}) == (form != "iceberg")
    if form == "delta":
        assert sql["trino"][0] == ("CALL delta.system.unregister_table(schema_name => 'lake', table_name => 'clicks')")
        assert f"table_location => 'local://{lake.place}'" in sql["trino"][-1]
        assert sql["presto"][0] == "DROP TABLE delta.lake.clicks"
    tables = {name: place for name, place in names(tmp_path).items() if name.startswith("clicks")}
    if form == "iceberg":
        assert {name: lake.place in place for name, place in tables.items()} == {
            "clicks": True, "clicks_before_1": False, "clicks_dead_letters": False, "clicks_late": False,
        }  # fmt: skip
    assert "is the pipeline's" in lake.promote(), "a second time there is nothing to do"
    new = Driver(tmp_path, whole=load(lake.promoted()))
    new.start()
    lake.to(new, 30)
    assert audit(new.config, "clicks", since=None, deep=True).adds_up
    assert new.table.snapshot().format == 7, "specs and raw; the entry is the first's alone"


def test_commands_that_maintain_the_first_table_refuse_and_those_that_read_it_do_not(tmp_path: Path) -> None:
    lake = Lake(tmp_path, "delta")
    for end in (21, 22, 23):
        lake.to(lake.first, end)
    lake.to(lake.shadow(), 23)
    lake.promote("--yes")
    assert lake.first.table.snapshot().format == PROMOTED
    before = contents(tmp_path)
    raw = yaml.safe_load(lake.file.read_text())
    raw["pipelines"]["clicks"] |= {"retention": "30 d"}
    lake.file.write_text(yaml.safe_dump(raw))
    for words in (["compact", "--yes"], ["delete-rows", "--where", "id = 4", "--yes"], ["vacuum"], ["retention"]):
        done = CliRunner().invoke(app, [words[0], str(lake.file), *words[1:]])
        assert f"Set pipelines.clicks.table.location: {lake.place}" in str(done.exception), (words, done.output)
    new = {path: data for path, data in contents(tmp_path).items() if path not in before}
    assert {path: data for path, data in contents(tmp_path).items() if path in before} == before
    assert not any("_delta_log" in path for path in new)
    for words in (["audit"], ["buckets"], ["explain", "--json"]):
        done = CliRunner().invoke(app, [words[0], str(lake.file), *words[1:]])
        assert done.exit_code == 0, (words, done.output, done.exception)


def behind(lake: Lake) -> None:
    lake.to(lake.shadow(), 19)


def later(lake: Lake) -> None:
    lake.to(lake.shadow("now"), 21)


def gapped(lake: Lake) -> None:
    driver = lake.shadow()
    part = TopicPartition("clicks", 1, 0)
    gap = Gap("a", driver.epoch, [OffsetRange(part, 0, 6)], "retention", {"run": 1, "at": NOW.isoformat(), "hints": []})
    driver.table.record_gap(driver.table.snapshot(), gap)
    lake.to(driver, 20)


@pytest.mark.parametrize(
    ("how", "problem"),
    [
        (behind, "The shadow is behind: clicks/0 by 1"),
        (later, "has 20 offsets from before the shadow's start: clicks/0 by 20"),
        (gapped, "gaps where the first table has none: clicks/0 by 6"),
    ],
)
def test_a_shadow_that_lacks_offsets_is_not_promoted(tmp_path: Path, how: Any, problem: str) -> None:
    lake = Lake(tmp_path, "delta")
    how(lake)
    before = contents(tmp_path)
    assert problem in lake.promote("--yes", code=2)
    assert contents(tmp_path) == before
    if how is later:
        found = lake.promote("--yes", "--leave-history", "--json")
        assert (found["older"], found["diff"]) == (20, None)


def test_an_older_incarnation_is_history_and_a_new_partition_is_not(tmp_path: Path) -> None:
    lake = Lake(tmp_path, "delta")
    one, two = (TopicPartition("clicks", 2, p) for p in (0, 1))
    lake.first.table.begin({one: 0, two: 0}, {"clicks": ["uuid-1", "uuid-2"]})
    driver = Driver(tmp_path, whole=lake.config_of("now"))
    driver.table.begin({TopicPartition("clicks", 1, 0): 0}, {"clicks": ["uuid-2"]})
    assert "clicks/0 by 20" in lake.promote(code=2)
    assert lake.promote("--leave-history", "--json")["older"] == 20
    epoch = lake.first.table.snapshot().epoch
    gap = Gap("a", epoch, [OffsetRange(two, 0, 5)], "retention", {"run": 1, "at": NOW.isoformat(), "hints": []})
    lake.first.table.record_gap(lake.first.table.snapshot(), gap)
    assert "The shadow is behind: clicks/1 by 5" in lake.promote("--leave-history", code=2)


def test_a_commit_between_look_and_switch_is_not_lost(tmp_path: Path) -> None:
    lake = Lake(tmp_path, "delta")
    seen = lake.first.table.snapshot().parts()
    lake.to(lake.first, 22)
    with pytest.raises(CommitFailed, match="was written to meanwhile"):
        lake.first.table.supersede(seen, lake.place, {})
    assert not lake.first.table.snapshot().superseded_by


@pytest.mark.parametrize("which", ["first", "shadow"])
def test_a_running_writer_is_in_the_way(tmp_path: Path, which: str, monkeypatch: pytest.MonkeyPatch) -> None:
    lake = Lake(tmp_path, "delta")
    lake.to(lake.shadow(), 20)
    place = load(lake.file).checkpoints if which == "first" else lake.config_of().checkpoints
    found = type("Driver", (), {"pid": 7, "url": "http://127.0.0.1:7"})
    monkeypatch.setattr(
        "writer.clients.driver_endpoint.answers", lambda config, _: found if config.checkpoints == place else None
    )
    assert "(process 7, http://127.0.0.1:7)" in lake.promote("--yes", code=1)


def test_what_was_deleted_from_the_first_is_said(tmp_path: Path) -> None:
    lake = Lake(tmp_path, "delta")
    lake.to(lake.shadow(), 20)
    done = CliRunner().invoke(app, ["delete-rows", str(lake.file), "--where", "id = 4", "--yes"])
    assert done.exit_code == 0, (done.output, done.exception)
    assert lake.promote("--json")["deleted"] == 1
    assert "1 only in the second" in lake.promote()
    assert "were deleted from the first table" in lake.promote("--no-diff")


EFFECTS: Mapping[Any, Any] = {
    LocalStore: ("put", "put_if_absent", "move", "delete"), SqlCatalog: ("commit_table", "rename_table"),
}  # fmt: skip


@pytest.mark.parametrize("form", FORMS)
def test_a_promotion_that_dies_at_any_effect_is_ended_by_the_next(
    tmp_path: Path, form: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    made = tmp_path / "made"
    lake = Lake(made, form)
    lake.to(lake.shadow(), 20)
    work = tmp_path / "made"
    kept = tmp_path / "kept"
    shutil.copytree(made, kept)
    for after in range(40):
        shutil.rmtree(work)
        shutil.copytree(kept, work)
        catalog_client._open.cache_clear()  # the database is another file
        steps, is_dead = dying(monkeypatch, after, EFFECTS), False
        next(steps)
        try:
            lake.promote("--yes", "--no-diff")
        except (Died, AssertionError):
            is_dead = True
        with suppress(StopIteration):
            next(steps)
        catalog_client._open.cache_clear()
        assert lake.promote("--yes", "--no-diff", "--json")["done"]
        state = existing_table("clicks", load(lake.promoted())).snapshot()
        assert state.parts() == {TopicPartition("clicks", 1, 0): 20}
        found = {name for name in names(work) if name in ("clicks", "clicks_shadow", "clicks_before_1")}
        assert found == ({"clicks", "clicks_before_1"} if form == "iceberg" else set())
        if not is_dead:
            assert after >= (1 if form != "iceberg" else 4)
            return
    raise AssertionError("it has more effects than expected")


@pytest.mark.parametrize("form", FORMS)
def test_the_other_direction_goes_back(tmp_path: Path, form: str, writer: list[int]) -> None:
    lake = Lake(tmp_path, form)
    lake.to(lake.shadow(), 20)
    lake.promote("--yes")
    new = Driver(tmp_path, whole=load(lake.promoted()))
    new.start()
    lake.to(new, 30)
    old, lake.file = lake.file, lake.promoted()
    lake.other, lake.place = old, lake.first.lake  # the former file, by which the former table is written
    assert "The shadow is behind: clicks/0 by 10" in lake.promote("--yes", code=2)
    writer.append(30)
    shadowed(lake)
    assert lake.promote("--yes", "--json")["changes"] == {}, "the former file is right as it is"
    with pytest.raises(HeadraceError, match=r"put the table at|lies at|dropped or renamed"):
        lake.to(new, 33)
    with pytest.raises(ConfigError, match=r"put the table at|lies at"):
        Driver(tmp_path, whole=load(lake.file))
    back = Driver(tmp_path, whole=load(old))
    back.start()
    lake.to(back, 40)
    assert audit(back.config, "clicks", since=None, deep=True).adds_up
    dead = [offset for offset in range(40) if offset % 7 == 5]
    assert oracle.offsets(Path(back.lake))["clicks", 0] == [offset for offset in range(40) if offset not in dead]
    assert oracle.offsets(Path(back.dead_letters))["clicks", 0] == dead


def test_a_table_that_was_never_promoted_keeps_its_format(tmp_path: Path) -> None:
    driver = Driver(tmp_path)
    driver.start()
    driver.table.revive({})
    assert driver.table.snapshot().format == FORMAT
