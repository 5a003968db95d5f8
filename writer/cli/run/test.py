"""`headrace test`: runs the test files of a pipeline with pytest."""

import time
from dataclasses import dataclass
from difflib import unified_diff
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer
from rich.text import Text

from writer.core.errors import ConfigError
from writer.output import tables
from writer.output.cli_options import AsJson
from writer.output.confirmation import DryRun, Yes, confirm

if TYPE_CHECKING:
    from writer.preflight.testing.collector import PipelineTestFile
    from writer.preflight.testing.runner import TestRun

# pytest's exit codes for tests that failed, and for a file that cannot be used.
_TESTS_FAILED = 1
_COLLECTION_FAILED = 2


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
    as_json: AsJson = False,
    yes: Yes = False,
    dry_run: DryRun = False,
) -> None:
    """Test pipelines: records of files through the steps of a task, compared with what is expected of them.

    Without Kafka, registry, tables and Spark. Default: the files *.test.yaml below specs/. pytest runs them:
    pip install 'headrace[test]'. What they hold: https://github.com/headrace/headrace/blob/main/docs/TESTING.md

    Exit codes: 0 passed, 1 failed, 2 a mistake in a test file, 4 a mistake in an option, 5 no test was found. With
    --update it is 1 while a test fails: where nothing is written yet, and for `counts`, which stay.
    """
    if find_spec("pytest") is None or find_spec("xdist") is None:
        raise ConfigError("headrace test needs pytest and pytest-xdist: pip install 'headrace[test]'")
    if update and (expression or workers is not None):
        raise ConfigError("--update rewrites whole files; name the files, and leave -k and -n out")
    words = paths or []
    options = [word for word in words if word.startswith("-")]
    files = [word for word in words if not word.startswith("-")] or ["specs"]
    _check_exist(files)
    if expression:
        options += ["-k", expression]
    if first_failure:
        options.append("-x")
    if verbose:
        options.append("-v")
    if junit is not None:
        options.append(f"--junit-xml={junit}")
    if update:
        work = _Update(files, options, as_json=as_json)
        confirm(work, yes=yes, dry_run=dry_run, as_json=as_json)
        raise typer.Exit(work.exit_code)
    test_run, seconds = _run(files, options, workers, quiet=as_json)
    if as_json:
        tables.emit_whole(test_run.to_json(seconds))
    raise typer.Exit(test_run.exit_code)


def _check_exist(files: list[str]) -> None:
    """Raise ConfigError if there is no such file or folder."""
    for file in files:
        path = Path(file.partition("::")[0])
        if not path.exists():
            raise ConfigError(f"there is no {path}. Name files *.test.yaml, or folders with such files.")


def _run(files: list[str], options: list[str], workers: str | None, *, quiet: bool) -> tuple["TestRun", float]:
    """Run the tests. Returns what they found, and the seconds that they took. `quiet`: print nothing."""
    # pytest is an extra.
    from writer.preflight.testing import runner

    began_s = time.monotonic()
    test_run = runner.run_pytest(files, options, workers=workers, quiet=quiet)
    return test_run, time.monotonic() - began_s


@dataclass(frozen=True)
class _FileChange:
    """A file whose section `expect` is to change: its text before, and then."""

    path: Path
    before: str
    after: str

    @property
    def diff(self) -> str:
        """The lines that go and come, as `diff -u` shows them."""
        lines = unified_diff(self.before.splitlines(), self.after.splitlines(), str(self.path), str(self.path), n=1)
        return "\n".join(line.rstrip("\n") for line in lines)


class _Update:
    """Runs the tests, and changes the section `expect` of the files with failures."""

    def __init__(self, files: list[str], options: list[str], *, as_json: bool) -> None:
        self._files = files
        self._options = options
        self._as_json = as_json
        # What the first run found is written, after a question too.
        self._changes: list[_FileChange] | None = None
        self.exit_code = 0

    def __call__(self, *, write: bool) -> bool:
        """Show what would change, or change it and test again. Returns whether there is anything to change.

        Raises ConfigError if a file cannot be used, or its section `expect` cannot be told from others.
        """
        if self._changes is None:
            self._changes = self._list_changes(write=write)
        if not write or not self._changes:
            return bool(self._changes)
        for change in self._changes:
            change.path.write_bytes(change.after.encode())
            if not self._as_json:
                tables.sentence(tables.console(), f"{change.path}: `expect` is rewritten")
        test_run, seconds = _run(self._files, self._options, None, quiet=self._as_json)
        self.exit_code = test_run.exit_code
        if self._as_json:
            self._emit(test_run, seconds, self._changes)
        return True

    def _list_changes(self, *, write: bool) -> list[_FileChange]:
        """Run the tests, and show what they find and what would change."""
        test_run, seconds = _run(self._files, self._options, None, quiet=self._as_json)
        self.exit_code = test_run.exit_code
        changes: list[_FileChange] = []
        if test_run.exit_code != _COLLECTION_FAILED:
            changes = [change for file in test_run.files if (change := _change_of(file)) is not None]
        if self._as_json:
            if not write or not changes:
                self._emit(test_run, seconds, changes)
            return changes
        for change in changes:
            tables.console().print(Text(change.diff), soft_wrap=True)
        if test_run.exit_code == _TESTS_FAILED and not changes:
            tables.sentence(
                tables.console(), "--update changes nothing: `counts`, and what is refused, stay as they are."
            )
        return changes

    def _emit(self, test_run: "TestRun", seconds: float, changes: list[_FileChange]) -> None:
        document = test_run.to_json(seconds)
        document["updates"] = [{"path": str(change.path), "diff": change.diff} for change in changes]
        tables.emit_whole(document)


def _change_of(file: "PipelineTestFile") -> _FileChange | None:
    """Return what is to change in the file that has what a test file expects; None: nothing."""
    entries = file.changed_entries()
    if not entries:
        return None
    return _FileChange(file.case.expected_path, file.case.expected_text, file.case.replace_expected(entries))
