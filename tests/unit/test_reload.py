"""A configuration file that is read again while a process runs: what it changes, and what needs a restart."""

import threading
from collections.abc import Callable
from copy import deepcopy
from pathlib import Path
from shutil import rmtree
from typing import Any

import pytest
import yaml

from writer.config import loader
from writer.config.loader import ConfigChanges, ReloadableConfig
from writer.core.errors import ConfigError, LimitReached
from writer.driver.pipeline_runner import PipelineRunner, PipelineRunners, StartRequest, StartRequests
from writer.status.progress import Board, Progress
from writer.web.endpoints import starts

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
            lambda raw: raw["pipelines"].update(views={"commit": {"max_records": 5}}),
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
    edited(path, lambda raw: raw.update(pipelines={"views": {"commit": {"max_records": 5}}, "orders": None}))
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
        ("kafka: ${file:BINARY}", "the file BINARY: its name or its text is not UTF-8"),
        ('kafka: "${file:/a\\0b}"', "its name or its text is not UTF-8"),
    ],
)
def test_whatever_is_wrong_with_a_file_ends_nothing(path: Path, tmp_path: Path, text: str, why: str) -> None:
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
    edited(path, lambda raw: raw["pipelines"].update(views={"commit": {"max_records": 5}}))
    assert later() is None
    assert later() == ConfigChanges(changed=("views",))
    assert (later(), file.last.reads) == (None, 1)


class _Query:
    def __init__(self) -> None:
        self.isActive = True

    def exception(self) -> None:
        return None

    def stop(self) -> None:
        self.isActive = False


class _Pipeline:
    error = None

    def drain(self) -> bool:
        return True

    def catch_up(self) -> None:
        pass

    def owns_table(self) -> bool:
        return True


class Driver:
    """Pipelines that run until they are drained, and what happened to them."""

    def __init__(self, *names: str, supervised: bool = False) -> None:
        self.board, self.log, self.asked, self.stop = Board(), list[str](), StartRequests(), threading.Event()
        self.reports = list[str]()
        self.runners = PipelineRunners(self._made, self.asked, self.board.remove, supervised=supervised)
        self.fails = set[str]()
        for name in names:
            self.runners.add(name)
            self.runners.begin(name)

    def _made(self, name: str) -> PipelineRunner:
        self.board.add(name)

        def begin(r: PipelineRunner, _: bool) -> None:
            self.log.append(f"{name} begins")
            if name in self.fails:
                raise RuntimeError("torn")
            r.pipeline, r.query = _Pipeline(), _Query()  # type: ignore[assignment]
            r.shown.callback(self.log.append, f"{name} ends")

        return PipelineRunner(self.board[name], begin, report=lambda view, _: self.reports.append(view.pipeline))

    def beats(self, *steps: ConfigChanges | Callable[[], object]) -> None:
        """Let it run; one step at each look, at the end a stop."""
        left = list(steps)

        def beat() -> ConfigChanges | None:
            step = left.pop(0) if left else self.stop.set
            return step if isinstance(step, ConfigChanges) else step() and None  # type: ignore[func-returns-value]

        self.runners.watch(self.stop, beat)


def test_pipelines_come_change_and_go_beside_the_others() -> None:
    driver = Driver("clicks", "views")
    driver.beats(
        ConfigChanges(added=("orders",), changed=("views",)),
        lambda: driver.log.append(f"runs {sorted(driver.board)}"),
        lambda: None,
        ConfigChanges(removed=("views",)),
        lambda: None,
        lambda: driver.log.append(f"runs {sorted(driver.board)}"),
    )
    assert driver.log == [
        "clicks begins", "views begins", "orders begins", "runs ['clicks', 'orders', 'views']", "views ends",
        "views begins", "views ends", "runs ['clicks', 'orders']", "clicks ends", "orders ends",
    ]  # fmt: skip
    assert driver.reports == ["views", "clicks", "orders"], "one that begins anew has not ended"
    assert {one.view().state for one in driver.board.values()} == {"stopped"}


class _SlowPipeline(_Pipeline):
    """Its batch takes until `free` is set."""

    def __init__(self) -> None:
        self.free = threading.Event()

    def drain(self) -> bool:
        return self.free.is_set()


@pytest.mark.parametrize("supervised", [False, True])
def test_all_pipelines_are_exchanged_while_those_that_go_drain(supervised: bool) -> None:
    driver, slow = Driver("old", supervised=supervised), _SlowPipeline()
    driver.runners.all["old"].pipeline = slow  # type: ignore[assignment]
    post = starts(driver.board, "token", lambda *request: driver.asked.put(StartRequest(*request)))
    driver.beats(
        ConfigChanges(added=("new",), removed=("old",)),
        lambda: post("/pipelines/new/start?new_run=false&lease=1", "Bearer token") if supervised else None,
        slow.free.set,
        lambda: None,
        lambda: driver.log.append(f"runs {sorted(driver.board)}"),
    )
    assert driver.log == ["old begins", "new begins", "old ends", "runs ['new']", "new ends"]


def test_a_request_that_waits_keeps_a_driver_going_whose_pipelines_have_ended() -> None:
    driver = Driver("clicks", supervised=True)
    driver.runners.add("views")
    driver.asked.put(StartRequest("gone"))
    driver.asked.put(StartRequest("views"))
    driver.runners.all["clicks"].query.isActive = False
    driver.runners.watch(driver.stop, lambda: driver.stop.set() if "views begins" in driver.log else None)
    assert driver.log == ["clicks begins", "views begins", "clicks ends", "views ends"]


def test_those_that_fail_at_their_start_keep_no_other_from_its_own() -> None:
    driver = Driver("old")
    driver.fails = {"first", "second"}
    driver.beats(ConfigChanges(added=("first", "second", "third"), removed=("old",)), *[lambda: None] * 3)
    begun = [line for line in driver.log if "third" in line or "old" in line]
    assert begun == ["old begins", "old ends", "third begins", "third ends"]


def test_many_that_change_begin_one_by_one_with_a_beat_between() -> None:
    names = [f"p{n}" for n in range(6)]
    driver, beats = Driver(*names), list[tuple[int, set[str]]]()
    del driver.log[:]

    def beat() -> ConfigChanges | None:
        begun = sum("begins" in line for line in driver.log)
        beats.append((begun, {driver.board[name].view().state for name in names}))
        if begun == len(names):
            driver.stop.set()
        return ConfigChanges(changed=tuple(names)) if len(beats) == 1 else None

    driver.runners.watch(driver.stop, beat)
    assert [begun for begun, _ in beats] == [0, 0, *range(len(names) + 1), *[len(names)] * (len(beats) - 9)]
    assert all("starting" in states for begun, states in beats[2:] if begun < len(names)), "a start may take longer"


def test_many_that_come_begin_one_by_one_too() -> None:
    driver, begun = Driver("clicks"), list[int]()
    names = tuple(f"p{n}" for n in range(4))
    count: Callable[[], object] = lambda: begun.append(len(driver.log) - 1)  # noqa: E731
    driver.beats(ConfigChanges(added=names), *[count] * 5)
    assert begun == [1, 2, 3, 4, 4]


def test_a_pipeline_is_starting_while_it_begins() -> None:
    driver = Driver("clicks", supervised=True)
    states = list[str]()
    runner = driver.runners.add("views")
    runner.progress.stopped()
    runner._begin = lambda r, _: states.append(r.progress.view().state)
    runner.begin()
    assert states == ["starting"]


def test_one_whose_last_batch_fails_is_tried_with_its_new_settings() -> None:
    driver, slow = Driver("clicks", "views"), _SlowPipeline()
    runner = driver.runners.all["views"]
    runner.pipeline = slow  # type: ignore[assignment]

    def fail() -> None:
        slow.error = LimitReached("too many failed")  # type: ignore[assignment]
        runner.query.isActive = False

    shown: Callable[[], object] = lambda: driver.log.append(driver.board["views"].view().state)  # noqa: E731
    driver.beats(ConfigChanges(changed=("views",)), fail, lambda: None, shown)
    assert driver.log.count("views begins") == 2
    assert "running" in driver.log
    assert driver.reports == ["clicks", "views"], "only at the end"


def test_one_that_another_writer_replaced_does_not_begin_anew() -> None:
    driver, slow = Driver("clicks", "views"), _SlowPipeline()
    slow.owns_table = lambda: False  # type: ignore[method-assign]
    slow.free.set()
    driver.runners.all["views"].pipeline = slow  # type: ignore[assignment]
    driver.beats(ConfigChanges(changed=("views",)), lambda: None, lambda: None)
    assert driver.log.count("views begins") == 1
    assert driver.board["views"].view().state == "failed"


def test_one_that_is_put_back_while_it_drains_begins_anew() -> None:
    driver = Driver("clicks", "views")
    runner = driver.runners.all["views"]
    driver.runners.change(ConfigChanges(removed=("views",)))
    assert runner.removed
    driver.beats(ConfigChanges(added=("views",)), lambda: None, lambda: None)
    assert driver.log.count("views begins") == 2
    assert "views" in driver.board


def test_a_reload_starts_what_has_failed_once_more() -> None:
    driver = Driver("clicks", "views")
    driver.fails = {"orders"}
    driver.beats(
        ConfigChanges(added=("orders",)),
        lambda: None,
        driver.fails.clear,
        ConfigChanges(),
        lambda: None,
        lambda: driver.log.append(driver.board["orders"].view().state),
    )
    assert driver.log.count("orders begins") == 2
    assert "running" in driver.log


def test_a_supervisor_asks_for_the_start_of_one_that_comes() -> None:
    driver = Driver("clicks", supervised=True)
    driver.beats(
        ConfigChanges(added=("orders",)),
        lambda: driver.log.append(driver.board["orders"].view().state),
        lambda: driver.asked.put(StartRequest("orders", lease=7)),
        lambda: driver.log.append(str(driver.runners.all["orders"].lease)),
    )
    assert driver.log == ["clicks begins", "stopped", "orders begins", "7", "clicks ends", "orders ends"]


def test_a_reader_of_the_board_reads_it_to_its_end() -> None:
    board = Board(["clicks", "views"])
    reading = iter(board.values())
    first = next(reading)
    board.remove("views")
    board.add("orders")
    assert [first.pipeline, *(one.pipeline for one in reading)] == ["clicks", "views"]
    assert [one.pipeline for one in board.values()] == list(board) == ["clicks", "orders"]
    assert isinstance(board["orders"], Progress)
