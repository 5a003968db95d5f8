"""A shadow takes the offsets of a table to a second one and leaves the first as it is; promote switches the two."""

import json
from pathlib import Path

import pytest
import yaml
from typer.testing import CliRunner

from headrace.writer.audit.audit import audit
from headrace.writer.cli.main import app
from headrace.writer.config.loader import load
from headrace.writer.core.errors import ConfigError
from headrace.writer.core.offsets import TopicPartition
from headrace.writer.maintenance.migration.shadow import shadow_start_offsets
from tests.support import oracle
from tests.support.local_driver import Died as DriverDied, log
from tests.support.sample_records import NOW, event
from tests.support.shadow_lake import FORMS, HOUR, Lake, contents, names, run_diff, run_shadow, writer_fixture  # noqa: F401 - a fixture


@pytest.mark.parametrize("form", FORMS)
def test_a_shadow_writes_the_same_offsets_and_no_byte_of_the_first_changes(tmp_path: Path, form: str) -> None:
    lake = Lake(tmp_path, form)
    before, tables = contents(tmp_path), names(tmp_path)
    driver = lake.shadow()
    lake.to(driver, 12)
    lake.to(driver, 25)
    driver.carry([log({25: event(25, event_time=NOW - 30 * HOUR)})], {0: 26})
    assert contents(tmp_path) == before
    assert tables.items() <= names(tmp_path).items()
    assert names(tmp_path).keys() - tables.keys() == (
        {"clicks_shadow", "v2_dead_letters", "v2_late", "v2_raw"} if form == "iceberg" else set()
    )
    assert {path.name for path in (tmp_path / "elsewhere").iterdir()} == {"v2", "v2_dead_letters", "v2_late", "v2_raw"}
    comparison = run_diff(lake)
    assert (comparison["offsets"], comparison["only_first"], comparison["only_second"]) == (20, 1, 0)
    assert comparison["columns"] == {"note": 16}
    assert audit(driver.config, "clicks", since=None, deep=True).adds_up
    assert contents(tmp_path) == before


def test_a_shadow_tells_no_other_system_and_has_locations_of_its_own(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    lake = Lake(tmp_path, "delta", commit_offsets_to_group="told")
    raw = yaml.safe_load(lake.other.read_text())
    monkeypatch.setenv("TOLD", "http://127.0.0.1:1/")
    raw |= {"notifications": {"url_env": "TOLD"}, "http": {"port": 9643, "enabled": False}}
    raw["openlineage"] = {"url": "http://127.0.0.1:1/"}
    lake.other.write_text(yaml.safe_dump(raw))
    shadow_config = lake.config_of()
    pipeline = shadow_config.pipelines["clicks"]
    assert (pipeline.hooks, pipeline.commit_offsets_to_group, shadow_config.notifications.url_env) == ([], None, None)
    assert (shadow_config.openlineage, shadow_config.opentelemetry) == (
        type(shadow_config.openlineage)(),
        type(shadow_config.opentelemetry)(),
    )
    assert (shadow_config.http.enabled, shadow_config.http.port, shadow_config.checkpoints) == (
        True,
        0,
        f"{lake.place}_checkpoints",
    )
    assert set(pipeline.locations) == {lake.place + end for end in ("", "_dead_letters", "_late", "_raw")}
    assert pipeline.specs == load(lake.other).pipelines["clicks"].specs


@pytest.mark.parametrize(
    ("place", "problem"),
    [
        ("lake/clicks", "is the table of pipeline 'clicks' itself"), ("lake/clicks/_v2", "neither may be inside"),
        ("lake", "neither may be inside"), ("link/clicks/v2", "neither may be inside"),
        ("lake/raw/x", "is the raw table"), ("lake/clicks_late", "is the late table"),
        ("checkpoints/clicks/v2", "is the checkpoints"), ("lake/clicks_dead_letters", "is the dead-letter table"),
    ],
)  # fmt: skip
def test_a_shadow_at_in_or_around_its_table_is_refused(tmp_path: Path, place: str, problem: str) -> None:
    lake = Lake(tmp_path, "delta")
    (tmp_path / "link").symlink_to(tmp_path / "lake")
    before = contents(tmp_path)
    lake.place = str(tmp_path / place)
    for arguments in (["shadow", "--location"], ["diff", "--shadow"], ["promote", "--shadow"]):
        result = CliRunner().invoke(app, [arguments[0], str(lake.file), arguments[1], lake.place])
        assert problem in str(result.exception), result.output
        assert isinstance(result.exception, ConfigError)
    assert contents(tmp_path) == before


def test_a_shadow_begins_where_it_is_told(tmp_path: Path) -> None:
    lake = Lake(tmp_path, "delta", start=4, end=9)
    version = lake.first.table.snapshot().version
    lake.to(lake.first, 20)
    config = load(lake.file)
    assert [shadow_start_offsets(config, "clicks", begin)["clicks"] for begin in ("start", str(version), "now")] == [
        {0: 4}, {0: 9}, {0: 20},
    ]  # fmt: skip
    lake.first.table.begin({TopicPartition("clicks", 2, 0): 3}, {"clicks": ["uuid-1", "uuid-2"]})
    assert shadow_start_offsets(config, "clicks", "now") == {"clicks": {0: 3}}, "of the topic that is there now"
    with pytest.raises(ConfigError, match="neither start, now nor a version"):
        shadow_start_offsets(config, "clicks", "yesterday")


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
    assert oracle.offsets(Path(lake.place))["clicks", 0] == [offset for offset in range(20) if offset not in (3, *dead)]
    assert oracle.offsets(Path(again.dead_letters))["clicks", 0] == dead


def test_the_command_says_what_the_shadow_has_and_what_to_do_next(tmp_path: Path, writer: list[int]) -> None:
    lake = Lake(tmp_path, "delta")
    writer.append(18)
    document = json.loads(run_shadow(lake, "--json"))
    assert document["partitions"] == [
        {"topic": "clicks", "partition": 0, "start": 0, "end": 18, "first_end": 20, "gap": 0}
    ]
    assert (document["rows"], document["dead_letters"]) == (15, 2)
    assert document["diff"] == f"headrace diff {lake.file} --pipeline clicks --with {lake.other} --shadow {lake.place}"
    writer.append(20)
    shown = run_shadow(lake)
    assert f"clicks: the shadow at {lake.place} has 16 rows, and 3 dead letters." in shown
    assert shown.endswith(f"Compare: {document['diff']}\n")
    writer.append(0)
    run_shadow(lake, code=1)


# Promote.
