"""Runs test files, and rewrites what they expect."""

import time
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from writer.core.errors import HeadraceError
from writer.preflight.testing.case import Case
from writer.preflight.testing.comparison import Result, expected_section, results
from writer.preflight.testing.outcomes import outcomes


@dataclass(frozen=True)
class FileResult:
    """The tests of one file, or the sentence that says why the pipeline refused its records."""

    case: Case
    tests: tuple[Result, ...] = ()
    error: str = ""
    seconds: float = 0.0
    # What `expect` would have to be, if a test failed.
    wanted: dict[str, Any] | None = None

    @property
    def path(self) -> Path:
        """The file."""
        return self.case.path

    @property
    def failed(self) -> list[Result]:
        """The tests that failed."""
        return [test for test in self.tests if test.differences]


def run(cases: Iterable[Case], text: str) -> Iterator[FileResult]:
    """Run test files one after the other. `text`: only tests whose file or name has it, in any case; empty: all."""
    for case in cases:
        began_s = time.monotonic()
        try:
            actual = outcomes(case.config, case.pipeline, case.sample, case.file.now, case.file.closed_until)
        except HeadraceError as error:
            if text.casefold() in str(case.path).casefold():
                yield FileResult(case, error=str(error), seconds=time.monotonic() - began_s)
            continue
        tests = tuple(test for test in results(case, actual) if text.casefold() in case.full_name(test.name))
        wanted = None
        if any(test.differences and test.position for test in tests):
            wanted = expected_section(case, actual)
        if tests or not text:
            yield FileResult(case, tests, seconds=time.monotonic() - began_s, wanted=wanted)


def to_json(results: Iterable[FileResult], seconds: float) -> dict[str, Any]:
    """Return the results as JSON values."""
    files = list(results)
    return {
        "passed": sum(len(file.tests) - len(file.failed) for file in files),
        "failed": sum(len(file.failed) for file in files),
        "errors": sum(bool(file.error) for file in files),
        "seconds": round(seconds, 3),
        "files": [
            {
                "path": str(file.path),
                "error": file.error or None,
                "tests": [
                    {
                        "name": test.name,
                        "passed": not test.differences,
                        "differences": list(map(vars, test.differences)),
                    }
                    for test in file.tests
                ],
            }
            for file in files
        ],
    }
