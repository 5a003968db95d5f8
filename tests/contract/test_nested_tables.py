"""A table inside another table's folder is refused before it is made, and opened with a warning where it was before."""

import json
import os
import re
import shutil
import subprocess
import sys
import threading
from collections.abc import Callable
from contextlib import nullcontext
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import yaml
from typer.testing import CliRunner

from headrace.writer.audit.audit import audit
from headrace.writer.cli.main import app
from headrace.writer.clients import notifications
from headrace.writer.config.pipelines import Config
from headrace.writer.core.errors import ConfigError, exit_code
from headrace.writer.driver import main
from headrace.writer.driver.batches.batch_queue import BatchQueue
from headrace.writer.driver.pipeline_runner import PipelineRunner
from headrace.writer.maintenance.vacuum import list_objects
from headrace.writer.preflight.checks import host_checks
from headrace.writer.status.progress import Progress
from headrace.writer.storage.locations import store_at
from headrace.writer.table import locations
from headrace.writer.telemetry.receivers import Receivers
from tests.servers.objects import ObjectServer
from tests.support.local_driver import Driver, log
from tests.support.sample_records import config as one_pipeline, event, tree
from tests.support.small_files import fill_table, offsets
from tests.support.table_formats import OPENED
from tests.support.tables import LOGS


@pytest.fixture(params=["local", pytest.param("s3", marks=pytest.mark.slow)])
def root(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    """Where tables may lie, in each kind of store."""
    if request.param == "local":
        return str(tmp_path)
    server: ObjectServer = request.getfixturevalue("on_s3")
    return server.bucket()


def made(root: Path, form: str = "delta", **pipelines: dict[str, Any]) -> Config:
    """A configuration of several pipelines, by their tables."""
    raw = one_pipeline(root).model_dump(mode="json", exclude_unset=True)
    clicks = raw["pipelines"].pop("clicks")
    for name, settings in pipelines.items():
        raw["checkpoints"] = settings.pop("checkpoints", raw["checkpoints"])
        raw["pipelines"][name] = {**clicks, "table": {**settings, "format": form}}
    return Config.model_validate(raw)


def said(config: Config, name: str = "a") -> list[tuple[str, str]]:
    """What validate finds, in one word, and what a start does."""
    findings = list(host_checks.nesting(name, config))
    refused = [finding.message for finding in findings if finding.status == "failed"]
    with pytest.raises(ConfigError, match=re.escape(refused[0])) if refused else nullcontext():
        locations.check_locations(name, config)
    return [(finding.status, finding.message) for finding in findings]


def statuses(config: Config, name: str = "a") -> set[str]:
    return {status for status, _ in said(config, name)}


@pytest.mark.parametrize(
    ("table", "checkpoints"),
    [
        ({"location": "lake", "dead_letters": "lake/dead_letters"}, "checkpoints"),
        ({"location": "lake", "dead_letters": "lake/x/../dead_letters/"}, "checkpoints"),
        ({"location": "letters/lake", "dead_letters": "letters"}, "checkpoints"),
        ({"location": "lake"}, "lake/checkpoints"),
        ({"location": "checkpoints/lake"}, "checkpoints"),
        ({"location": "lake"}, "lake"),
        ({"location": "lake"}, "x/../lake"),
    ],
)
def test_a_new_table_inside_another_location_of_its_pipeline_is_refused(
    root: str, tmp_path: Path, form: str, table: dict[str, str], checkpoints: str
) -> None:
    below = {key: f"{root}/{location}" for key, location in table.items()}
    config = made(tmp_path, form, a={**below, "checkpoints": f"{root}/{checkpoints}"})
    assert "failed" in statuses(config)
    assert list(list_objects(store_at(f"{root}/lake"))) == []


def test_of_two_pipelines_neither_makes_its_table_inside_or_around_that_of_the_other(root: str, tmp_path: Path) -> None:
    config = made(tmp_path, a={"location": f"{root}/lake"}, b={"location": f"{root}/lake/b"})
    assert [statuses(config, name) for name in "ab"] == [{"failed"}, {"failed"}]
    ((_, message),) = said(config, "b")[:1]
    assert message == (
        f"the table of pipeline 'b' at {root}/lake/b is inside the table of pipeline 'a' at {root}/lake, where its "
        "files are taken for those of the other"
    )


def test_siblings_and_folders_that_are_passed_over_are_allowed(root: str, tmp_path: Path, form: str) -> None:
    config = made(
        tmp_path, form,
        a={"location": f"{root}/lake", "dead_letters": f"{root}/lake/_dead_letters"},
        b={"location": f"{root}/lake2", "dead_letters": f"{root}/lake/.of/b", "checkpoints": f"{root}/lake/_c"},
    )  # fmt: skip
    assert [statuses(config, name) for name in "ab"] == [{"ok"}, {"ok"}]


@pytest.mark.parametrize("kind", LOGS)
def test_a_new_table_inside_the_table_of_another_writer_is_refused(root: str, tmp_path: Path, kind: str) -> None:
    store_at(f"{root}/theirs").put(LOGS[kind], b"{}")
    for table in (
        {"location": f"{root}/theirs/deep/lake"},
        {"location": f"{root}/lake", "dead_letters": f"{root}/theirs/deep/letters"},
        {"location": f"{root}/lake", "checkpoints": f"{root}/theirs/c"},
        {"location": f"{root}/lake", "checkpoints": f"{root}/theirs"},
    ):
        findings = said(made(tmp_path, a=table))
        assert {status for status, _ in findings} == {"failed"}
        assert f"the table that is there at {root}/theirs" in findings[0][1]
    assert statuses(made(tmp_path, a={"location": f"{root}/theirs2"})) == {"ok"}
    assert statuses(made(tmp_path, a={"location": f"{root}/theirs/_mine"})) == {"ok"}


def test_a_delta_table_is_not_made_where_an_iceberg_table_lies(root: str) -> None:
    store_at(f"{root}/theirs").put(LOGS["iceberg"], b"{}")
    with pytest.raises(ConfigError, match=r"/theirs holds an Iceberg table\. Choose a new location"):
        OPENED["delta"](f"{root}/theirs", "a").check_location()


def test_links_are_followed(tmp_path: Path) -> None:
    lake, link = tmp_path / "lake", tmp_path / "link"
    (lake / "inner").mkdir(parents=True)
    link.symlink_to(lake / "inner")
    away = lake / "away"
    away.symlink_to(tmp_path)
    assert "failed" in statuses(made(tmp_path, a={"location": str(lake)}, b={"location": f"{link}/b"}), "b")
    assert "failed" in statuses(made(tmp_path, a={"location": str(lake)}, b={"location": f"{away}/b"}), "b")
    same = tmp_path / "same"
    same.symlink_to(lake)
    config = made(tmp_path, a={"location": str(lake)}, b={"location": str(same)})
    assert "are one folder" in said(config, "b")[0][1]


def test_a_folder_above_that_cannot_be_listed_stops_nothing_and_is_named(tmp_path: Path) -> None:
    """Rights in a bucket may begin below it."""
    (tmp_path / "metadata").symlink_to(tmp_path / "metadata")
    ((status, message),) = said(made(tmp_path, a={"location": f"{tmp_path}/lake"}))
    assert (status, f"{tmp_path} cannot be listed: a table there is not seen" in message) == ("ok", True)


@pytest.fixture
def existing(root: str, tmp_path: Path, form: str) -> Driver:
    """A lake with its dead letters inside the table, which nobody looked at when they were made."""
    table = {"location": f"{root}/lake", "dead_letters": f"{root}/lake/letters"}
    driver = fill_table(tmp_path, form, commits=2, table=table)
    driver.carry([log({20: b"broken", 21: event(3)})], {0: 22})
    return driver


def test_an_existing_table_inside_another_is_opened_with_a_warning(
    existing: Driver, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level("WARNING", "headrace")
    assert [status for status, _ in said(existing.config, "clicks") if status != "failed"] == ["warning"]
    (event,) = (record.message for record in caplog.records)
    assert "WARNING location_inside_another pipeline=clicks" in event
    assert f"at {existing.dead_letters}" in event


def test_rows_of_a_table_inside_are_not_taken_for_those_of_the_table(existing: Driver, form: str) -> None:
    """Recovery goes by them, where the log does not tell how far the table has come."""
    inner = fill_table(
        Path(existing.config.checkpoints).parent, form, commits=5, table={"location": f"{existing.lake}/in"}
    )
    assert offsets(inner) == list(range(50))
    assert offsets(existing) == [*range(20), 21]


def test_new_checkpoints_inside_a_table_that_exists_are_refused(existing: Driver) -> None:
    for location in (existing.lake, f"{existing.lake}/c"):
        config = existing.config.model_copy(update={"checkpoints": location})
        assert statuses(config, "clicks") == {"failed", "warning"}
    assert statuses(existing.config.model_copy(update={"checkpoints": f"{existing.lake}/_c"}), "clicks") == {"warning"}


def test_checkpoints_that_were_removed_do_not_stop_a_lake_inside_them(tmp_path: Path) -> None:
    driver = fill_table(tmp_path, "delta", commits=1, table={"location": str(tmp_path / "checkpoints" / "lake")})
    (tmp_path / "checkpoints" / "clicks" / "000001").mkdir(parents=True)
    assert statuses(driver.config, "clicks") == {"warning"}
    shutil.rmtree(tmp_path / "checkpoints" / "clicks")
    assert statuses(driver.config, "clicks") == {"warning"}


@pytest.mark.parametrize("form", ["delta", "parquet"])  # Iceberg's metadata has whole paths
def test_the_way_out_that_docs_tables_describes_keeps_every_dead_letter(tmp_path: Path, form: str) -> None:
    lake, old, new = tmp_path / "lake", tmp_path / "lake" / "letters", tmp_path / "letters"
    before = fill_table(tmp_path, form, commits=2, table={"location": str(lake), "dead_letters": str(old)})
    before.carry([log({20: b"broken", 21: event(3)})], {0: 22})
    shutil.copytree(old, new)
    after = Driver(tmp_path, form, table={"location": str(lake), "dead_letters": str(new)})
    assert statuses(after.config, "clicks") == {"ok"}
    after.start()
    after.carry([log({22: b"broken", 23: event(3)})], {0: 24})
    shutil.rmtree(old)
    again = Driver(tmp_path, form, table={"location": str(lake), "dead_letters": str(new)})
    again.start()
    again.carry([log({24: b"broken", 25: event(3)})], {0: 26})
    assert not old.exists()
    assert offsets(again) == [offset for offset in range(26) if offset not in (20, 22, 24)]
    assert again.side(str(new)).rows().count_rows() == 3
    assert audit(again.config, "clicks", since=None, deep=True).adds_up


# --- the verbs ----------------------------------------------------------------------------------------------------


def written(config: Config, tmp_path: Path) -> Path:
    path = tmp_path / "headrace.yaml"
    path.write_text(yaml.safe_dump(config.model_dump(mode="json", exclude_unset=True)))
    return path


def test_validate_exits_with_2_and_names_both_places(tmp_path: Path) -> None:
    lake = tmp_path / "lake"
    refused = made(tmp_path, a={"location": f"{lake}/a", "dead_letters": f"{lake}/a/letters"})
    done = CliRunner().invoke(app, ["validate", str(written(refused, tmp_path)), "--offline", "--json"])
    assert done.exit_code == 2
    (finding,) = (found for found in json.loads(done.stdout)["findings"] if found["status"] == "failed")
    assert (finding["check"], finding["pipeline"]) == ("locations", "a")
    assert f"at {lake}/a/letters is inside the table of pipeline 'a' at {lake}/a," in finding["message"]
    assert finding["fix"].startswith("Give each a folder of its own")
    assert not lake.exists()
    fine = made(tmp_path, a={"location": f"{lake}/a", "dead_letters": f"{lake}/a/_letters"})
    done = CliRunner().invoke(app, ["validate", str(written(fine, tmp_path)), "--offline"])
    assert done.exit_code == 0
    assert "✓ locations" in done.stdout


def test_a_start_is_refused_before_it_writes_or_asks_a_server(tmp_path: Path) -> None:
    """Without Spark and Kafka: neither is asked before the place is known to be good."""
    config = made(tmp_path, a={"location": f"{tmp_path}/lake", "dead_letters": f"{tmp_path}/lake/letters"})
    before = tree(tmp_path)
    begin: Callable[..., None] = partial(
        main.start_pipeline,
        lambda: None,
        lambda: config,
        None,
        notifications.Notifier(),
        Receivers(),
        True,
        BatchQueue(),
        threading.Event(),
        None,
    )
    running = PipelineRunner(Progress("a"), begin, waits=False)
    running.begin()
    assert isinstance(running.error, ConfigError)
    assert (exit_code(running.error), "is inside the table of pipeline 'a'" in str(running.error)) == (2, True)
    assert tree(tmp_path) == before


@pytest.mark.parametrize("form", ["text", "json"])
def test_a_driver_finds_it_before_spark_and_its_last_line_is_a_sentence(tmp_path: Path, form: str) -> None:
    config = made(tmp_path, a={"location": f"{tmp_path}/lake", "dead_letters": f"{tmp_path}/lake/letters"})
    command = [sys.executable, "-m", "headrace.writer.cli", "run", str(written(config, tmp_path)), "--once"]
    env = {**os.environ, "HEADRACE_LOG": form}
    done = subprocess.run(command, capture_output=True, text=True, timeout=400, check=False, env=env)
    assert done.returncode == 2
    page = done.stdout.removeprefix("headrace: page at http://127.0.0.1:") if form == "text" else done.stdout
    assert page.removesuffix("/\n").isdigit() if form == "text" else page == ""
    *logged, last = done.stderr.splitlines()
    assert "spark_starting" not in done.stderr
    assert last.startswith(f"headrace: the dead-letter table of pipeline 'a' at {tmp_path}/lake/letters is inside the ")
    assert not (tmp_path / "checkpoints").exists(), "not even a lease"
    (failed,) = [line for line in logged if "pipeline_failed" in line]
    assert " ERROR " in failed if form == "text" else json.loads(failed)["level"] == "error"
