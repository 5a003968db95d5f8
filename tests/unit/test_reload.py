"""A configuration file that is read again while a process runs: what it changes, and what needs a restart."""

import threading
from collections.abc import Callable
from copy import deepcopy
from pathlib import Path
from typing import Any

import pytest
import yaml

from writer.config import loader
from writer.config.loader import ConfigChanges, ReloadableConfig
from writer.driver.pipeline_runner import PipelineRunner, PipelineRunners, StartRequest, StartRequests
from writer.status.progress import Board, Progress

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


def test_one_that_comes_waits_for_those_that_go_whose_table_it_may_have() -> None:
    driver = Driver("clicks", "old")
    driver.beats(ConfigChanges(added=("new",), removed=("old",)), lambda: None, lambda: None)
    assert driver.log[:4] == ["clicks begins", "old begins", "old ends", "new begins"]


def test_one_that_is_put_back_while_it_drains_begins_anew() -> None:
    driver = Driver("clicks", "views")
    runner = driver.runners.all["views"]
    driver.runners.change(ConfigChanges(removed=("views",)))
    assert runner.removed
    driver.beats(ConfigChanges(added=("views",)), lambda: None)
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
