"""`headrace test`: runs the test files of a pipeline with pytest."""

import time
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from writer.core.errors import ConfigError
from writer.output import tables
from writer.output.cli_options import AsJson
from writer.output.confirmation import DryRun, Yes, confirm

if TYPE_CHECKING:
    from writer.preflight.testing.runner import TestRun

# pytest's exit code for a file that cannot be used.
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
        bool, typer.Option("--update", help="Rewrite `expect` by what came; with --yes, else it is only shown.")
    ] = False,
    as_json: AsJson = False,
    yes: Yes = False,
    dry_run: DryRun = False,
) -> None:
    """Test pipelines: records of files through the steps of a task, compared with what is expected of them.

    Without Kafka, registry, tables and Spark. Default: the files *.test.yaml below specs/. pytest runs them:
    pip install 'headrace[test]'. What they hold: https://github.com/headrace/headrace/blob/main/docs/TESTING.md

    Exit codes: 0 passed, 1 failed, 2 a mistake in a test file, 4 a mistake in an option, 5 no test was found.
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
        confirm(_Update(files, options, as_json=as_json), yes=yes, dry_run=dry_run, as_json=as_json)
        return
    test_run = _run(files, options, workers, as_json=as_json)
    raise typer.Exit(test_run.exit_code)


def _check_exist(files: list[str]) -> None:
    """Raise ConfigError if there is no such file or folder."""
    for file in files:
        path = Path(file.partition("::")[0])
        if not path.exists():
            raise ConfigError(f"there is no {path}. Name files *.test.yaml, or folders with such files.")


def _run(files: list[str], options: list[str], workers: str | None, *, as_json: bool) -> "TestRun":
    """Run the tests and show them."""
    # pytest is an extra.
    from writer.preflight.testing import runner

    began_s = time.monotonic()
    test_run = runner.run_pytest(files, options, workers=workers, quiet=as_json)
    if as_json:
        tables.emit_whole(test_run.to_json(time.monotonic() - began_s))
    return test_run


class _Update:
    """Runs the tests, and rewrites the section `expect` of the files with failures."""

    def __init__(self, files: list[str], options: list[str], *, as_json: bool) -> None:
        self._files = files
        self._options = options
        self._as_json = as_json

    def __call__(self, *, write: bool) -> bool:
        """Show what fails, or rewrite what is expected. Returns whether there is anything to rewrite.

        Raises ConfigError if a file cannot be used, or its section `expect` cannot be told from others.
        """
        test_run = _run(self._files, self._options, None, as_json=self._as_json)
        if test_run.exit_code == _COLLECTION_FAILED:
            raise typer.Exit(_COLLECTION_FAILED)
        texts = dict[Path, str]()
        for file in test_run.files:
            section = file.wanted_section()
            if section is not None:
                texts[file.case.expected_path] = file.case.replace_expected(section)
        if write:
            for path, text in texts.items():
                path.write_text(text, encoding="utf-8")
                if not self._as_json:
                    tables.sentence(tables.console(), f"{path}: `expect` is rewritten")
        return bool(texts)
