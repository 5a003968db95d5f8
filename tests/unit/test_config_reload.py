"""A configuration file that is read again while a process runs: what it changes, and what needs a restart."""

import threading
from collections.abc import Callable
from copy import deepcopy
from pathlib import Path
from shutil import rmtree
from typing import Any

import pytest
import yaml

from headrace.writer.config import loader
from headrace.writer.config.loader import ConfigChanges, ReloadableConfig
from headrace.writer.core.errors import ConfigError

BASE: dict[str, Any] = {
    "kafka": {"bootstrap_servers": "x:1"}, "registry": {"url": "http://x"}, "checkpoints": "/checkpoints",
    "defaults": {"table": {"location": "/lake/{pipeline}"}, "event_time": {"field": "at"}, "topics": ["{pipeline}"]},
    "pipelines": {"clicks": None, "views": None},
}  # fmt: skip
Edit = Callable[[dict[str, Any]], object]


@pytest.fixture
def path(tmp_path: Path) -> Path:
    file = tmp_path / "pipelines.yaml"
    file.write_text(yaml.safe_dump(BASE))
    return file


def edited(path: Path, edit: Edit) -> None:
    raw = deepcopy(BASE)
    edit(raw)
    path.write_text(yaml.safe_dump(raw))


def opened(path: Path, only: list[str] | None = None, **options: Any) -> tuple[ReloadableConfig, threading.Event]:
    requested = threading.Event()
    return ReloadableConfig(path, only, requested, **options), requested


@pytest.mark.parametrize(
    ("edit", "changes"),
    [
        (lambda raw: raw["pipelines"].update(orders=None), ConfigChanges(added=("orders",))),
        (lambda raw: raw["pipelines"].pop("views"), ConfigChanges(removed=("views",))),
        (
            lambda raw: raw["pipelines"].update(views={"commit": {"max_offsets": 5}}),
            ConfigChanges(changed=("views",)),
        ),
        (lambda raw: raw["defaults"].update(retention="3650 d"), ConfigChanges(changed=("clicks", "views"))),
        (lambda raw: raw.update(stop_timeout="5 min"), ConfigChanges(restart=("stop_timeout",))),
        (
            lambda raw: (raw["kafka"].update(request_timeout="7 s"), raw.update(spark={"master": "local[3]"})),
            ConfigChanges(restart=("kafka.request_timeout", "spark.master")),
        ),
        (lambda _: None, ConfigChanges()),
    ],
)  # fmt: skip
def test_pipelines_are_taken_over_and_other_keys_are_listed(path: Path, edit: Edit, changes: ConfigChanges) -> None:
    file, requested = opened(path)
    edited(path, edit)
    assert file.read_again() is None, "nobody asked"
    requested.set()
    before = file.config
    assert file.read_again() == changes
    assert file.config.kafka == before.kafka
    assert file.config.stop_timeout == before.stop_timeout
    assert set(file.names) == {"clicks", "views", *changes.added} - {*changes.removed}
    assert file.read_again() is None
    requested.set()
    assert file.read_again() == ConfigChanges(restart=changes.restart), "until the process is started again"


def test_a_process_of_some_pipelines_minds_only_those(path: Path) -> None:
    file, requested = opened(path, ["clicks"])
    edited(path, lambda raw: raw.update(pipelines={"views": {"commit": {"max_offsets": 5}}, "orders": None}))
    requested.set()
    assert file.read_again() == ConfigChanges(removed=("clicks",))
    assert file.names == []
    edited(path, lambda _: None)
    requested.set()
    assert file.read_again() == ConfigChanges(added=("clicks",))


def test_an_invalid_file_changes_nothing_and_says_so(path: Path) -> None:
    file, requested = opened(path)
    before = file.config
    edited(path, lambda raw: raw["pipelines"].update(orders={"topcs": ["x"]}))
    requested.set()
    assert file.read_again() is None
    assert (file.config, file.names) == (before, ["clicks", "views"])
    assert "did you mean 'topics'" in file.last.error
    assert file.document()["error"] == file.last.error
    assert (file.last.reads, file.document()["file"]) == (1, str(path))
    edited(path, lambda raw: raw["pipelines"].update(orders=None))
    requested.set()
    assert file.read_again() == ConfigChanges(added=("orders",))
    assert (file.last.error, file.document()["added"]) == ("", ["orders"])


@pytest.mark.parametrize(
    ("text", "why"),
    [
        (
            "pipelines: {clicks: {start: {timestamp: 2026-02-30T00:00:00Z}}}",
            "line 1, column 41: no timestamp: day is out",
        ),
        ("a: !!bool perhaps", "line 1, column 4: no bool"),
        ("a: !!timestamp noon", "line 1, column 4: no timestamp"),
        ("[" * 5_000, "nested too deeply"),
        ("a: \0", "is not YAML"),
        ("kafka: ${file:BINARY}", "the file BINARY cannot be read: its text is not UTF-8"),
        ('kafka: "${file:/a\\0b}"', "its name is none"),
    ],
)
def test_an_invalid_file_ends_no_pipeline(path: Path, tmp_path: Path, text: str, why: str) -> None:
    file, requested = opened(path)
    (tmp_path / "binary").write_bytes(b"\xff\xfe\x00")
    path.write_text(text.replace("BINARY", str(tmp_path / "binary")))
    requested.set()
    assert file.read_again() is None
    assert why.replace("BINARY", str(tmp_path / "binary")) in file.last.error
    assert file.names == ["clicks", "views"]


def test_a_fault_of_the_loader_itself_ends_nothing(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    file, requested = opened(path)
    monkeypatch.setattr(loader, "load", lambda _: {}["kafka"])
    requested.set()
    assert file.read_again() is None
    assert file.last.error == f"{path} cannot be used: KeyError"


BY_RECORD: dict[str, Any] = {"strategy": "record_name", "records": {"clicks": ["a.Click"], "views": ["a.View"]}}


def test_no_pipeline_begins_without_the_registry_and_kafka_of_its_file(path: Path) -> None:
    edited(path, lambda raw: raw["registry"].update(subjects=BY_RECORD))
    file, requested = opened(path)
    before, records = file.config, {**BY_RECORD["records"], "orders": ["a.Order"]}
    edited(path, lambda raw: (raw["pipelines"].update(orders=None), raw["registry"].update(
        subjects={**BY_RECORD, "records": records})))  # fmt: skip
    requested.set()
    assert file.read_again() is None
    assert "orders would begin without the new registry.subjects" in file.last.error
    assert "Restart the process" in file.last.error
    assert (file.config, file.names) == (before, ["clicks", "views"])
    records = {**BY_RECORD["records"], "views": ["a.View", "a.Look"]}
    edited(path, lambda raw: raw["registry"].update(subjects={**BY_RECORD, "records": records}))
    requested.set()
    assert file.read_again() == ConfigChanges(restart=("registry.subjects",)), "alone it waits for the next start"


def test_the_combination_that_is_in_force_is_one_that_the_checks_have_seen(path: Path) -> None:
    conf = {"master": "local[2]", "conf": {"spark.scheduler.mode": "FIFO"}}
    edited(path, lambda raw: raw.update(spark=conf))
    file, requested = opened(path)
    edited(path, lambda raw: raw["pipelines"].update(views={"scheduling": {"weight": 4}}))
    requested.set()
    assert file.read_again() is None
    assert "pipelines.views.scheduling would not count" in file.last.error
    assert file.config.pipelines["views"].scheduling.weight == 1


def test_a_process_may_be_asked_for_a_pipeline_that_comes_later(path: Path) -> None:
    with pytest.raises(ConfigError, match="no pipeline 'orders'"):
        opened(path, ["clicks", "orders"])
    file, requested = opened(path, ["clicks", "orders"], missing_ok=True)
    assert file.names == ["clicks"]
    edited(path, lambda raw: raw["pipelines"].update(orders=None))
    requested.set()
    assert file.read_again() == ConfigChanges(added=("orders",))
    assert file.names == ["clicks", "orders"]


def test_a_config_map_that_is_exchanged_is_noticed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Kubernetes writes a new folder, and lets the link `..data` lead there in one step."""
    clock = [0.0]
    monkeypatch.setattr(loader.time, "monotonic", lambda: clock[0])

    def exchanged(version: str, edit: Edit) -> None:
        (tmp_path / f"..{version}").mkdir()
        edited(tmp_path / f"..{version}" / "pipelines.yaml", edit)
        (tmp_path / "..data_tmp").symlink_to(f"..{version}")
        (tmp_path / "..data_tmp").replace(tmp_path / "..data")

    exchanged("1", lambda _: None)
    (tmp_path / "pipelines.yaml").symlink_to("..data/pipelines.yaml")
    file, _ = opened(tmp_path / "pipelines.yaml", watched=True)
    exchanged("2", lambda raw: raw["pipelines"].update(orders=None))
    rmtree(tmp_path / "..1")
    found = []
    for _ in range(3):
        clock[0] += loader._LOOK_S
        found.append(file.read_again())
    assert found == [None, ConfigChanges(added=("orders",)), None]


def test_a_watched_file_is_read_once_its_text_stands_still(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    clock = [0.0]
    monkeypatch.setattr(loader.time, "monotonic", lambda: clock[0])
    file, _ = opened(path, watched=True)

    def later() -> ConfigChanges | None:
        clock[0] += loader._LOOK_S
        return file.read_again()

    edited(path, lambda raw: raw["pipelines"].pop("views"))
    assert file.read_again() is None, "not every moment"
    assert later() is None, "an editor may not have written it all"
    edited(path, lambda raw: raw["pipelines"].update(views={"commit": {"max_offsets": 5}}))
    assert later() is None
    assert later() == ConfigChanges(changed=("views",))
    assert (later(), file.last.reads) == (None, 1)
