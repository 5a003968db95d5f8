"""Runs test files, and rewrites what they expect."""

import time
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from writer.core.errors import HeadraceError
from writer.preflight.testing.case import Case
from writer.preflight.testing.comparison import Result, as_found, results
from writer.preflight.testing.outcomes import outcomes


@dataclass(frozen=True)
class FileResult:
    """The tests of one file, or the sentence that says why the pipeline refused its records."""

    case: Case
    tests: tuple[Result, ...] = ()
    error: str = ""
    seconds: float = 0.0
    wanted: dict[str, Any] | None = None  # `expect` as it would have to be, where it is not so

    @property
    def path(self) -> Path:
        """The file."""
        return self.case.path

    @property
    def failed(self) -> list[Result]:
        """The tests that failed."""
        return [one for one in self.tests if one.differences]


def run(cases: Iterable[Case], word: str) -> Iterator[FileResult]:
    """Run test files one after the other. `word`: only tests whose file or name has it, in any case; empty: all."""
    for case in cases:
        began_s = time.monotonic()
        try:
            found = outcomes(case.config, case.pipeline, case.sample, case.file.now, case.file.closed_until)
        except HeadraceError as error:
            if word.casefold() in str(case.path).casefold():
                yield FileResult(case, error=str(error), seconds=time.monotonic() - began_s)
            continue
        tests = tuple(one for one in results(case, found) if word.casefold() in case.called(one.name))
        is_other = any(one.differences and one.place for one in tests)
        if tests or not word:
            yield FileResult(
                case, tests, seconds=time.monotonic() - began_s, wanted=as_found(case, found) if is_other else None
            )


def to_json(found: Iterable[FileResult], seconds: float) -> dict[str, Any]:
    """Return the results as JSON values."""
    files = list(found)
    return {
        "passed": sum(len(one.tests) - len(one.failed) for one in files),
        "failed": sum(len(one.failed) for one in files),
        "errors": sum(bool(one.error) for one in files),
        "seconds": round(seconds, 3),
        "files": [
            {
                "path": str(one.path),
                "error": one.error or None,
                "tests": [
                    {
                        "name": test.name,
                        "passed": not test.differences,
                        "differences": list(map(vars, test.differences)),
                    }
                    for test in one.tests
                ],
            }
            for one in files
        ],
    }
