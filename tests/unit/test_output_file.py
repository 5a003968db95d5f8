"""A file beside a report that cannot be written takes nothing of the report away."""

import io
import json
from pathlib import Path

import pytest
from rich.console import Console
from typer.testing import CliRunner, Result

from headrace.autoscaler.runtime import state_store
from headrace.bench import show
from headrace.bench.cli import write_results
from headrace.bench.simulation import trace as traces
from headrace.bench.simulation.trace import Trace
from headrace.writer.cli.main import app
from headrace.writer.core.errors import ConfigError, FileUnavailable, HeadraceError
from headrace.writer.output.output_file import check_output_file, write_output_file
from tests.support.autoscaler_facts import facts, pipeline
from tests.support.bench_runs import MACHINE, bench_runs, bench_setting

SHORT = Trace("short", "an hour", 15.0, (30_000.0,) * 240, partitions=8, executors_first=1)
NO_SPACE = "cannot be written: No space left on device. Name another file."


@pytest.fixture
def full(tmp_path: Path) -> "FullDisk":
    return FullDisk(tmp_path)


class FullDisk:
    """Files for which there is never room."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder

    def file(self, name: str) -> Path:
        path = self._folder / name
        path.symlink_to("/dev/full")
        return path


def run(*arguments: object) -> Result:
    return CliRunner().invoke(app, [str(argument) for argument in arguments])


def simulate(folder: Path, *arguments: object) -> Result:
    trace = folder / "short.json"
    traces.write(SHORT, trace)
    return run("simulate", "--trace", trace, "--policy", "none", *arguments)


def explain(folder: Path, *arguments: object) -> Result:
    path = folder / "facts.json"
    state_store.write_file(facts(pipeline(40_000)), path)
    return run("autoscaler", "explain", "--facts", path, *arguments)


@pytest.mark.parametrize(
    ("command", "option", "name"),
    [
        (simulate, "--plot", "day.png"),
        (simulate, "--plot", "day.svg"),
        (simulate, "--plot", "day.pdf"),
        (explain, "--save", "saved.json"),
    ],
)
@pytest.mark.parametrize("flags", [[], ["--json"]])
def test_a_report_is_shown_whose_file_cannot_be_written(command, option, name, flags, tmp_path, full) -> None:
    path = full.file(name)
    shown = command(tmp_path, *flags)
    assert shown.exit_code == 0
    failed = command(tmp_path, *flags, option, path)
    assert failed.stdout == shown.stdout
    assert isinstance(failed.exception, FileUnavailable)
    assert str(failed.exception) == f"{option} {path} {NO_SPACE}"


@pytest.mark.parametrize("names", [["--json"], ["--plot"], ["--json", "--plot"]])
def test_a_bench_writes_the_other_file_and_names_each_that_cannot_be_written(names, tmp_path, full) -> None:
    paths = {option: tmp_path / f"bench.{ending}" for option, ending in (("--json", "json"), ("--plot", "svg"))}
    for option in names:
        full.file(paths[option].name)
    console = Console(file=io.StringIO(), width=200)
    with pytest.raises(HeadraceError) as raised:
        write_results(bench_runs(), bench_setting(), MACHINE, paths["--json"], paths["--plot"], console)
    assert str(raised.value).split("\nheadrace: ") == [f"{option} {paths[option]} {NO_SPACE}" for option in names]
    assert raised.value.exit_code == 1
    for option in paths.keys() - set(names):
        assert paths[option].stat().st_size > 1_000
        assert console.file.getvalue() == f"written: {paths[option]}\n"


def test_a_bench_whose_files_can_be_written_writes_and_names_them(tmp_path) -> None:
    console = Console(file=io.StringIO(), width=200)
    write_results(bench_runs(), bench_setting(), MACHINE, tmp_path / "bench.json", None, console)
    assert json.loads((tmp_path / "bench.json").read_text()) == json.loads(
        json.dumps(show.as_json(bench_runs(), bench_setting(), MACHINE))
    )
    assert console.file.getvalue() == f"written: {tmp_path / 'bench.json'}\n"


def test_a_trace_that_cannot_be_saved_ends_before_anything_is_played(tmp_path, full) -> None:
    failed = simulate(tmp_path, "--save", full.file("again.json"))
    assert failed.stdout == ""
    assert str(failed.exception) == f"--save {tmp_path / 'again.json'} {NO_SPACE}"


def test_what_waits_for_a_person_is_a_matter_of_configuration(tmp_path: Path) -> None:
    path = tmp_path / ("x" * 300)
    failure = write_output_file("--save", path, lambda path: path.write_text("x"))
    assert isinstance(failure, ConfigError)
    assert str(failure) == f"--save {path} cannot be written: File name too long. Name another file."


@pytest.mark.parametrize("name", ["no/such.json", "."])
def test_a_file_that_can_never_be_written_is_said_before_the_work(name: str, tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="cannot be written: its directory must exist, and it must be a file"):
        check_output_file("--plot", tmp_path / name)
    check_output_file("--plot", tmp_path / "fine.png")
