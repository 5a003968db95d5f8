"""`headrace test`: runs the test files of a pipeline with pytest."""

from collections.abc import Sequence
from dataclasses import dataclass, field
from difflib import unified_diff
from importlib.util import find_spec
from itertools import takewhile
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer
from rich.console import Console
from rich.text import Text

from headrace.writer.core.errors import ConfigError, HeadraceError, file_error
from headrace.writer.output.command import command
from headrace.writer.output.output_file import output_file_error
from headrace.writer.output.report import SCREEN_ONLY, Report, Screen
from headrace.writer.output.tables import sentence

if TYPE_CHECKING:
    from headrace.writer.preflight.testing.runner import FileResult, TestRun

# pytest's exit codes for tests that failed, and for a file that cannot be used.
_TESTS_FAILED = 1
_COLLECTION_FAILED = 2


@dataclass(frozen=True)
class FileUpdate:
    """A file whose section `expect` changes, by --update."""

    path: Path
    # The lines that go and come, as `diff -u` shows them.
    diff: str
    # Its text, empty where it is new, and its text then.
    before: str = field(metadata=SCREEN_ONLY)
    after: str = field(metadata=SCREEN_ONLY)


@dataclass(frozen=True)
class PipelineTestReport(Report):
    """What the tests found, and what --update changes."""

    passed: int
    failed: int
    errors: int
    seconds: float
    files: Sequence["FileResult"]
    updates: Sequence[FileUpdate]
    # Of pytest.
    code: int = field(metadata=SCREEN_ONLY)
    # Why the file of --junit is not written.
    failure: HeadraceError | None = field(default=None, metadata=SCREEN_ONLY)

    @property
    def exit_code(self) -> int:
        """The exit code of pytest."""
        return self.code

    @property
    def has_changes(self) -> bool:
        """Whether there is anything to rewrite."""
        return bool(self.updates)

    def render(self, out: Console) -> None:
        """Draw nothing: pytest prints as it goes, and changes are on the page since they were found."""


@command(
    exits={
        0: "passed",
        1: "failed, or a file cannot be written",
        2: "a mistake in a test file, or a file cannot be written",
        3: "a failure of pytest itself",
        4: "a mistake in an option",
        5: "no test was found",
    }
)
def run_tests(
    paths: Annotated[
        list[str] | None,
        typer.Argument(
            help="Test files, folders with files *.test.yaml, or FILE::TEST. What follows -- goes to pytest."
        ),
    ] = None,
    expression: Annotated[
        str, typer.Option("-k", help="Only tests whose file or name fits, such as 'Germany and not tombstone'.")
    ] = "",
    first_failure: Annotated[bool, typer.Option("-x", "--exitfirst", help="Stop at the first failure.")] = False,
    verbose: Annotated[bool, typer.Option("-v", "--verbose", help="A line for each test.")] = False,
    workers: Annotated[
        str | None, typer.Option("-n", "--workers", help="Processes that run the files: a number, or auto.")
    ] = None,
    junit: Annotated[Path | None, typer.Option("--junit", help="Write JUnit XML to this file, too.")] = None,
    update: Annotated[
        bool, typer.Option("--update", help="Change `expect` to what came; with --yes, else the change is only shown.")
    ] = False,
    *,
    write: bool,
    preview: PipelineTestReport | None,
    screen: Screen,
) -> PipelineTestReport:
    """Test pipelines: records of files through the steps of a task, compared with what is expected of them.

    Without Kafka, registry, tables and Spark. Default: the files *.test.yaml below specs/. pytest runs them:
    pip install 'headrace[test]'. What they hold: https://github.com/headrace/headrace/blob/main/docs/TESTING.md

    With --update it ends with 1 while a test fails: where nothing is written yet, and for `counts`, which stay.

    An exit code that is not listed below is that of a plugin of pytest.
    """
    if find_spec("pytest") is None or find_spec("xdist") is None:
        raise ConfigError("headrace test needs pytest and pytest-xdist: pip install 'headrace[test]'")
    if update and (expression or workers is not None):
        raise ConfigError("--update rewrites whole files; name the files, and leave -k and -n out")
    files, options = _split_words(paths or [])
    _check_exist(files)
    if expression:
        options += ["-k", expression]
    if first_failure:
        options.append("-x")
    if verbose:
        options.append("-v")
    if junit is not None:
        options.append(f"--junit-xml={junit}")
    report = preview
    if report is None:
        test_run = _run(files, options, workers, quiet=screen.as_json)
        updates: list[FileUpdate] = []
        if update:
            updates = _list_updates(test_run)
            _show_updates(updates, test_run, screen.out)
        report = _report(test_run, updates, junit)
    if not write or not report.updates:
        return report
    _write_updates(report.updates, screen.out)
    return _report(_run(files, options, None, quiet=screen.as_json), report.updates, junit)


def _split_words(words: list[str]) -> tuple[list[str], list[str]]:
    """Return the files, by default those below specs/, and the options of pytest.

    The parser drops the --, and takes no unknown option before it.
    """
    files = list(takewhile(lambda word: not word.startswith("-"), words))
    return files or ["specs"], words[len(files) :]


def _check_exist(files: list[str]) -> None:
    """Raise ConfigError if there is no such file or folder."""
    for file in files:
        path = Path(file.partition("::")[0])
        if not path.exists():
            raise ConfigError(f"there is no {path}. Name files *.test.yaml, or folders with such files.")


def _run(files: list[str], options: list[str], workers: str | None, *, quiet: bool) -> "TestRun":
    """Run the tests. Returns what they found. `quiet`: print nothing."""
    # pytest is an extra.
    from headrace.writer.preflight.testing import runner

    return runner.run_pytest(files, options, workers=workers, quiet=quiet)


def _list_updates(test_run: "TestRun") -> list[FileUpdate]:
    """Return what is to change in the files that have what test files expect. Raises ConfigError."""
    if test_run.exit_code == _COLLECTION_FAILED:
        return []
    updates: list[FileUpdate] = []
    for file in test_run.files:
        entries = file.changed_entries()
        if entries:
            path = file.case.expected_path
            before = file.case.expected_text
            after = file.case.replace_expected(entries)
            updates.append(FileUpdate(path, _diff(path, before, after), before, after))
    return updates


def _diff(path: Path, before: str, after: str) -> str:
    lines = unified_diff(before.splitlines(), after.splitlines(), str(path), str(path), n=1)
    return "\n".join(line.rstrip("\n") for line in lines)


def _show_updates(updates: Sequence[FileUpdate], test_run: "TestRun", out: Console) -> None:
    for file in updates:
        out.print(Text(file.diff), soft_wrap=True)
    if test_run.exit_code == _TESTS_FAILED and not updates:
        sentence(out, "--update changes nothing: `counts`, and what is refused, stay as they are.")


def _write_updates(updates: Sequence[FileUpdate], out: Console) -> None:
    """Write what was shown. Raises ConfigError, before any is written, where a file is not as it was then.

    Raises ConfigError or FileUnavailable for a file that cannot be written.
    """
    for file in updates:
        text = file.path.read_bytes().decode() if file.path.exists() else ""
        if text != file.before:
            raise ConfigError(f"{file.path} has changed since its update was shown, and stays as it is. Run it again.")
    for file in updates:
        try:
            file.path.write_bytes(file.after.encode())
        except OSError as error:
            text = f"{file.path} cannot be written: {error.strerror}. Make it writable, and run it again."
            raise file_error(text, error) from error
        sentence(out, f"{file.path}: `expect` is rewritten")


def _report(test_run: "TestRun", updates: Sequence[FileUpdate], junit: Path | None) -> PipelineTestReport:
    failure = None
    if junit is not None and test_run.junit_error is not None:
        failure = output_file_error("--junit", junit, test_run.junit_error)
    results = test_run.list_files()
    tests = [test for result in results for test in result.tests]
    return PipelineTestReport(
        passed=sum(test.passed for test in tests),
        failed=sum(not test.passed for test in tests),
        errors=sum(result.error is not None for result in results),
        seconds=round(test_run.seconds, 3),
        files=results,
        updates=updates,
        code=test_run.exit_code,
        failure=failure,
    )
