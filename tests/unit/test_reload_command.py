"""`headrace reload`: which processes it signals, and what it says of their answers."""

import inspect
import os
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest
import yaml

from headrace.writer.cli.run.reload import ReloadReport, reload
from headrace.writer.clients.driver_endpoint import announce, this_driver
from headrace.writer.config.sections.connections import Http
from headrace.writer.core.errors import ConfigError, HeadraceError
from headrace.writer.core.signals import describe_process
from headrace.writer.output.report import Screen
from headrace.writer.web.http_server import answering, json_answer

# A process that appends a line to a file at each SIGHUP.
LISTENER = """
import signal, sys, time
signal.signal(signal.SIGHUP, lambda *_: open(sys.argv[1], "a").write("read\\n"))
print("ready", flush=True)
time.sleep(120)
"""
Serve = Callable[..., int]


@pytest.fixture
def path(tmp_path: Path) -> Path:
    file = tmp_path / "pipelines.yaml"
    file.write_text(yaml.safe_dump({
        "kafka": {"bootstrap_servers": "x:1"}, "registry": {"url": "http://x"},
        "checkpoints": f"{tmp_path}/checkpoints",
        "http": {"port": 0}, "supervisor": {"port": 0},
        "defaults": {"table": {"location": "/lake/{pipeline}"}, "event_time": {"field": "at"}, "topics": ["t"]},
        "pipelines": {"clicks": None, "views": None},
    }))  # fmt: skip
    return file


@pytest.fixture
def serve(path: Path, tmp_path: Path) -> Iterator[Serve]:
    """Start a process that reads a file, and answer for it. Returns its id."""
    with ExitStack() as after:

        def started(pipeline: str, *, reads: Path = path, **said: Any) -> int:
            log = tmp_path / f"{pipeline}.log"
            child = subprocess.Popen([sys.executable, "-c", LISTENER, str(log)], stdout=subprocess.PIPE)
            after.callback(child.wait)
            after.callback(child.kill)
            assert child.stdout is not None
            after.callback(child.stdout.close)
            assert child.stdout.readline() == b"ready\n"

            def status() -> dict[str, Any]:
                count = log.read_text().count("read") if log.exists() else 0
                lists: dict[str, Any] = {"added": [], "changed": [], "removed": [], "restart": []}
                about = {"file": str(reads), "reads": count, "read_at": None, "error": None, **lists, **said}
                return {"config": {**about, "process": describe_process(child.pid) | said.get("process", {})}}

            url = after.enter_context(answering(Http.model_validate({"port": 0}), lambda *_: json_answer(status())))
            announce(f"{tmp_path}/checkpoints", pipeline, this_driver(url, 1))
            return child.pid

        yield started


def request(path: Path, timeout: str = "60 s") -> ReloadReport:
    report = inspect.unwrap(reload)(path, timeout=timeout, screen=Screen(as_json=False, has_lines=False))
    assert isinstance(report, ReloadReport)
    return report


def read(path: Path, pipeline: str) -> int:
    log = path.with_name(f"{pipeline}.log")
    return log.read_text().count("read") if log.exists() else 0


def test_every_process_of_the_file_reads_it_once(path: Path, serve: Serve) -> None:
    serve("clicks", added=["orders"], restart=["spark.master"])
    serve("views", changed=["views"], restart=["spark.master"])
    found = request(path).document()
    assert (read(path, "clicks"), read(path, "views")) == (1, 1)
    assert {what: found[what] for what in ("added", "changed", "restart", "error")} == {
        "added": ["orders"], "changed": ["views"], "restart": ["spark.master"], "error": None,
    }  # fmt: skip


def test_a_writer_of_another_file_or_machine_is_left_alone_and_keeps_no_other_from_reading(
    path: Path, serve: Serve
) -> None:
    serve("clicks", reads=path.with_name("other.yaml"))
    with pytest.raises(ConfigError, match=r"reads .*other.yaml, not"):
        request(path, "1 s")
    serve("views")
    request(path)
    assert (read(path, "clicks"), read(path, "views")) == (0, 1)
    serve("clicks", process={"host": "elsewhere"})
    request(path)
    assert (read(path, "clicks"), read(path, "views")) == (0, 2)


@pytest.mark.parametrize("text", ["topcs: [x]", "start: {timestamp: 2026-02-30T00:00:00Z}"])
def test_the_writer_reads_an_invalid_file_too_and_its_reason_is_shown(path: Path, serve: Serve, text: str) -> None:
    serve("clicks", error="the writer's reason")
    good = path.read_text()
    path.write_text(good.replace("clicks: null", f"clicks: {{{text}}}"))
    if "timestamp" in text:  # not even YAML: the places are those of the defaults
        with pytest.raises(ConfigError, match="no timestamp"):
            request(path, "1 s")
        return
    with pytest.raises(ConfigError, match="nothing was changed: the writer's reason"):
        request(path)
    assert read(path, "clicks") == 1


def test_a_variable_that_only_the_writer_has_is_no_fault(path: Path, serve: Serve) -> None:
    serve("clicks")
    path.write_text(path.read_text().replace("url: http://x", "url: ${env:HEADRACE_OF_THE_WRITER}"))
    assert request(path).reading["error"] is None


def test_without_a_writer_an_invalid_file_is_still_refused(path: Path) -> None:
    with pytest.raises(HeadraceError, match="no driver and no supervisor answer"):
        request(path, "1 s")
    path.write_text("pipelines: [")
    with pytest.raises(ConfigError, match="is not YAML"):
        request(path, "1 s")


def test_a_writer_that_does_not_read_is_named(path: Path, serve: Serve) -> None:
    os.kill(serve("clicks"), signal.SIGSTOP)
    with pytest.raises(HeadraceError, match="has not read its file within 1 s"):
        request(path, "1 s")
