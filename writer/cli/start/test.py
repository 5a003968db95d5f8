"""`headrace test`: runs the test files of a pipeline."""

import time
from pathlib import Path
from typing import Annotated

import typer

from writer.core.errors import ConfigError
from writer.output import tables
from writer.output.cli_options import AsJson
from writer.output.confirmation import DryRun, Yes, confirm
from writer.preflight.testing import case, report, runner

_FAILED, _NO_TESTS = 1, 5  # exit codes, as pytest has them


def run_tests(
    paths: Annotated[list[Path] | None, typer.Argument(help="Test files, or folders with files *.test.yaml.")] = None,
    word: Annotated[str, typer.Option("-k", help="Only tests whose file or name has this text.")] = "",
    verbose: Annotated[bool, typer.Option("-v", "--verbose", help="A line for each test.")] = False,
    junit: Annotated[Path | None, typer.Option("--junit", help="Write JUnit XML to this file, too.")] = None,
    update: Annotated[
        bool, typer.Option("--update", help="Rewrite `expect` by what came; with --yes, else it is only shown.")
    ] = False,
    as_json: AsJson = False,
    yes: Yes = False,
    dry_run: DryRun = False,
) -> None:
    """Test pipelines: records of files through the steps of a task, compared with what is expected of them.

    Without Kafka, registry, tables and Spark. Default: the files *.test.yaml below specs/. docs/TESTING.md says what
    they hold.

    Exit codes: 0 passed, 1 failed, 2 a mistake in a test file, 5 no test was found.
    """
    found = list[runner.FileResult]()

    def work(*, write: bool) -> bool:
        found[:] = _run(paths or [Path("specs")], word, verbose=verbose, junit=junit, as_json=as_json)
        texts = {
            one.case.expected_path: one.case.replace_expected(one.wanted) for one in found if one.wanted and update
        }
        for path, text in texts.items() if write else ():
            path.write_text(text, encoding="utf-8")
            if not as_json:
                tables.sentence(tables.console(), f"{path}: `expect` is rewritten")
        return bool(texts)

    if update and word:
        raise ConfigError("--update rewrites whole files; name the files, and leave -k out")
    if update:
        confirm(work, yes=yes, dry_run=dry_run, as_json=as_json)
        return
    work(write=False)
    if not any(one.tests or one.error for one in found):
        raise typer.Exit(_NO_TESTS)
    if any(one.failed or one.error for one in found):
        raise typer.Exit(_FAILED)


def _run(
    paths: list[Path], word: str, *, verbose: bool, junit: Path | None, as_json: bool
) -> list[runner.FileResult]:  # fmt: skip
    """Run the tests and show them. Raises ConfigError."""
    began_s = time.monotonic()
    cases = [case.read(path) for path in case.test_files(paths)]
    tests = sum(word.casefold() in one.full_name(name) for one in cases for name in one.tests)
    reporter = report.Reporter(tables.console(), tests, verbose=verbose)
    found = list[runner.FileResult]()
    for one in runner.run(cases, word):
        found.append(one)
        if not as_json:
            reporter.show(one)
    if as_json:
        tables.emit_whole(runner.to_json(found, time.monotonic() - began_s))
    else:
        reporter.end(time.monotonic() - began_s)
    if junit is not None:
        report.write_junit(junit, found)
    return found
