"""Nothing is imported from the working directory, whatever its files are called."""

import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from headrace.recovery.supervisor.driver_process import Driver, channel_folder
from headrace.writer.cli.main import main
from headrace.writer.driver.spark import WORKER_ENVIRONMENT
from tests.support import oracle
from tests.support.writer_process import Site

HEADRACE = Path(sys.executable).with_name("headrace")
NAMES = ("random", "json", "pyarrow", "numpy", "pyspark", "fastavro", "bucketers", "sitecustomize", "typing_extensions")


@pytest.fixture
def hostile(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A working directory with files that have the names of modules, and leave a trace where they are imported."""
    folder = tmp_path / "hostile"
    folder.mkdir()
    for name in NAMES:
        code = f"open({str(folder / 'imported')!r}, 'a').write('{name} ')\nraise SystemExit('{name} was imported')\n"
        (folder / f"{name}.py").write_text(code)
    monkeypatch.chdir(folder)
    monkeypatch.delenv("PYTHONSAFEPATH")
    monkeypatch.delenv("PYTHONPATH")
    return folder


def imported(folder: Path) -> str:
    trace = folder / "imported"
    return trace.read_text() if trace.exists() else ""


# `-m` puts the working directory on the path, whatever the words: one command shows it.
@pytest.mark.parametrize(
    ("command", "words"),
    [
        ([HEADRACE], ["--help"]),
        ([HEADRACE], ["preview", "--help"]),
        ([HEADRACE], ["supervisor", "run", "nowhere.yaml"]),
        ([sys.executable, "-m", "headrace.writer.cli"], ["preview", "--help"]),
    ],
)
def test_a_command_imports_nothing_of_its_folder(hostile: Path, command: list[str], words: list[str]) -> None:
    done = subprocess.run([*command, *words], capture_output=True, text=True, timeout=100, check=False)
    assert imported(hostile) == ""
    assert done.returncode == (2 if "nowhere.yaml" in words else 0), done.stderr


def test_the_trace_is_left_where_a_folder_is_looked_into(hostile: Path) -> None:
    subprocess.run([sys.executable, "-c", "import json"], capture_output=True, timeout=100, check=False)
    assert "json" in imported(hostile)


def test_a_process_that_a_command_starts_imports_nothing_of_the_working_directory(
    hostile: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sys, "argv", ["headrace", "--version"])
    monkeypatch.setenv("PYTHONSAFEPATH", "")
    with pytest.raises(SystemExit):
        main()
    with channel_folder() as folder:
        driver = Driver(folder, [sys.executable, "-c", "import json, random, pyarrow"], {})
        while (code := driver.exit_code()) is None:
            pass
    assert (code, imported(hostile)) == (0, "")
    assert WORKER_ENVIRONMENT["PYTHONSAFEPATH"] == os.environ["PYTHONSAFEPATH"] == "1"


@pytest.mark.slow
@pytest.mark.timeout(300)
@pytest.mark.parametrize("reader", ["native", "spark"])
def test_driver_and_workers_of_a_run_import_nothing_of_it(
    hostile: Path, site: Site, topic: Callable[..., str], reader: str
) -> None:
    name = topic(1)
    site.reader = reader
    lake = site.pipeline("events", [name])
    site.fill(name, 100)
    command = [sys.executable, "-m", "headrace.writer.cli", "run", str(site.config), "--once"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=250, check=False)
    assert imported(hostile) == ""
    assert done.returncode == 0, done.stderr
    oracle.check(lake, "events", site.ends(name))
