"""Runs test files with pytest, and keeps what each test found."""

import os
import time
from collections.abc import Generator, Iterator, Mapping, Sequence
from contextlib import contextmanager, redirect_stdout
from dataclasses import dataclass, field
from io import StringIO
from pathlib import Path
from typing import Any

import pytest

from headrace.writer.preflight.testing import collector
from headrace.writer.preflight.testing.collector import PipelineTest, PipelineTestFile

# pytest collects test files *.test.yaml alone: it runs no Python of the directory, and reads no settings for others.
_PYTEST_OPTIONS = (
    *("-c", os.devnull),
    "--noconftest",
    "--disable-plugin-autoload",
    "--no-header",
    "--assert=plain",
    *("-p", "no:python"),
    *("-p", "no:unittest"),
    *("-p", "no:doctest"),
    *("-p", "no:cacheprovider"),
    *("-p", "no:faulthandler"),
    *("-p", collector.__name__),
)
# The records of a file go through the steps together, so one worker runs all its tests.
_XDIST_OPTIONS = ("-p", "xdist", "--dist", "loadfile")


@dataclass(frozen=True)
class TestResult:
    """What a test found; of each difference `what`, `expected` and `got`."""

    name: str
    passed: bool
    differences: Sequence[Mapping[str, str]]

    __test__ = False


@dataclass(frozen=True)
class FileResult:
    """What the tests of a file found, or why it, or its records, cannot be used."""

    path: str
    error: str | None
    tests: Sequence[TestResult]


@dataclass
class TestRun:
    """What a run of pytest found, as a plugin of it."""

    # By the path of the file and the name of the test: what the test found, as the collector attaches it.
    results: dict[tuple[str, str], dict[str, Any]] = field(default_factory=dict)
    # By the path of a file that cannot be used: why.
    mistakes: dict[str, str] = field(default_factory=dict)
    files: list[PipelineTestFile] = field(default_factory=list)
    exit_code: int = 0
    # How long it took.
    seconds: float = 0.0
    # Why the file of --junit-xml is not written.
    junit_error: OSError | None = None

    __test__ = False

    def pytest_collection_finish(self, session: pytest.Session) -> None:
        """Keep the files whose tests run in this process."""
        files = [item.parent for item in session.items if isinstance(item, PipelineTest)]
        self.files = list(dict.fromkeys(files))

    def pytest_collectreport(self, report: pytest.CollectReport) -> None:
        """Keep why a file cannot be used."""
        if report.failed:
            self.mistakes[report.nodeid] = str(report.longrepr)
        elif report.skipped and isinstance(report.longrepr, tuple):
            self.mistakes[report.nodeid] = report.longrepr[2].removeprefix("Skipped: ")

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        """Keep what a test found, also in a worker of xdist."""
        result = getattr(report, collector.RESULT, None)
        if result is not None:
            self.results[result["path"], result["name"]] = result

    @pytest.hookimpl(wrapper=True, trylast=True)
    def pytest_sessionfinish(self) -> Generator[None, object, object]:
        """Keep why the file of --junit-xml is not written: pytest would end by it, and sum nothing up."""
        try:
            return (yield)
        except OSError as error:
            self.junit_error = error
            return None

    def list_files(self) -> list[FileResult]:
        """Return what each file's tests found, and why others cannot be used."""
        paths = dict.fromkeys(path for path, _ in self.results)
        files = [self._file_result(path) for path in paths]
        return files + [FileResult(path, message, []) for path, message in self.mistakes.items()]

    def _file_result(self, path: str) -> FileResult:
        results = [result for (file, _), result in self.results.items() if file == path]
        error = next((result["error"] for result in results), None)
        tests = [
            TestResult(result["name"], not result["differences"], result["differences"])
            for result in results
            if error is None
        ]
        return FileResult(path, error, tests)


def run_pytest(paths: Sequence[str], options: Sequence[str], *, workers: str | None, quiet: bool) -> TestRun:
    """Run test files with pytest, in this process. `options`: of pytest; `quiet`: print nothing.

    `workers`: how many processes of pytest-xdist run the files, as its -n takes it; None: this process does.
    """
    test_run = TestRun()
    # Without its confcutdir pytest lists each folder above the files.
    folder = Path.cwd()
    arguments = [*_PYTEST_OPTIONS, f"--rootdir={folder}", f"--confcutdir={folder}", *options]
    if workers is not None:
        arguments += [*_XDIST_OPTIONS, "-n", workers]
    began_s = time.monotonic()
    with _safe_path():
        if quiet:
            with redirect_stdout(StringIO()):
                test_run.exit_code = int(pytest.main([*arguments, *paths], plugins=[test_run]))
        else:
            test_run.exit_code = int(pytest.main([*arguments, *paths], plugins=[test_run]))
    test_run.seconds = time.monotonic() - began_s
    return test_run


@contextmanager
def _safe_path() -> Iterator[None]:
    """Keep the working directory off the path of workers that begin within."""
    before = os.environ.get("PYTHONSAFEPATH")
    os.environ["PYTHONSAFEPATH"] = "1"
    try:
        yield
    finally:
        if before is None:
            del os.environ["PYTHONSAFEPATH"]
        else:
            os.environ["PYTHONSAFEPATH"] = before
