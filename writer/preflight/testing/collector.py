"""A plugin of pytest that collects test files `*.test.yaml`: each record that one expects is a test.

Workers of pytest-xdist load it by the name of this module. What a test found travels with its report, so that
`headrace test` prints it as JSON in the process that asked.
"""

import os
from collections.abc import Generator, Iterator, Mapping
from dataclasses import asdict
from functools import cached_property
from pathlib import Path
from typing import Any

import pytest

from headrace.writer.core.errors import ConfigError, HeadraceError
from headrace.writer.preflight.testing import case
from headrace.writer.preflight.testing.case import Case
from headrace.writer.preflight.testing.comparison import Result, changed_entries, results
from headrace.writer.preflight.testing.outcomes import Outcome, outcomes
from headrace.writer.preflight.testing.records import RecordPosition

# By what a pipeline, or a file, is refused for: where that was reported first.
_REPORTED = pytest.StashKey[dict[str, str]]()
# The attribute of a report that has what a test found, as JSON values.
RESULT = "headrace_result"


class PipelineTestFile(pytest.File):
    """A test file. Its records go through the steps together, once, when the first of its tests runs."""

    case: Case

    @property
    def name_for_users(self) -> str:
        """The path of the file from the working directory."""
        return os.path.relpath(self.path)

    def collect(self) -> Iterator[pytest.Item]:
        """Yield a test for each record that is expected, and one for the counts. Raises CollectError."""
        try:
            self.case = case.read(Path(self.name_for_users))
        except ConfigError as error:
            _skip_if_reported(self.config, self.name_for_users, str(error))
            raise self.CollectError(str(error)) from None
        for name in self.case.tests:
            yield PipelineTest.from_parent(self, name=name)

    @cached_property
    def outcomes(self) -> Mapping[RecordPosition, Outcome] | HeadraceError:
        """What became of each record, or why the pipeline refuses all of them."""
        read_case = self.case
        try:
            return outcomes(
                read_case.config, read_case.pipeline, read_case.sample, read_case.file.now, read_case.file.closed_until
            )
        except HeadraceError as error:
            return error

    @cached_property
    def results(self) -> Mapping[str, Result]:
        """The result of each test of the file, by its name; none if the pipeline refuses the records."""
        if isinstance(self.outcomes, HeadraceError):
            return {}
        return {result.name: result for result in results(self.case, self.outcomes)}

    def changed_entries(self) -> dict[str, Any]:
        """Return the entries of `expect` with which all records pass; none where these pass already, or are refused."""
        if isinstance(self.outcomes, HeadraceError):
            return {}
        return changed_entries(self.case, self.outcomes)


class PipelineTest(pytest.Item):
    """A test of one record of a file, or of the counts of all."""

    parent: PipelineTestFile

    @property
    def result(self) -> Result | None:
        """What the test found; None if the pipeline refuses the records of the file."""
        return self.parent.results.get(self.name)

    def setup(self) -> None:
        """Run the records of the file, unless another test of the file did. Fails if the pipeline refuses them.

        One mistake is one error: further tests that it stops are skipped.
        """
        if isinstance(self.parent.outcomes, HeadraceError):
            message = str(self.parent.outcomes)
            _skip_if_reported(self.config, f"{self.parent.name_for_users}::{self.name}", message)
            pytest.fail(message, pytrace=False)

    def runtest(self) -> None:
        """Fail if the record did not become what is expected of it."""
        assert self.result is not None, "the setup failed"
        if self.result.differences:
            pytest.fail(_describe(self.parent.name_for_users, self.result), pytrace=False)

    def reportinfo(self) -> tuple[Path, int | None, str]:
        """Return the file and the title under which pytest shows a failure."""
        return self.path, None, self.name


def pytest_collect_file(file_path: Path, parent: pytest.Collector) -> PipelineTestFile | None:
    """Collect a file *.test.yaml, and any other file that is named. Called by pytest."""
    if file_path.match(case.PATTERN) or parent.session.isinitpath(file_path):
        file: PipelineTestFile = PipelineTestFile.from_parent(parent, path=file_path)
        return file
    return None


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(item: pytest.Item) -> Generator[None, pytest.TestReport, pytest.TestReport]:
    """Attach to a report what the test found. Called by pytest."""
    report = yield
    if isinstance(item, PipelineTest):
        refusal = item.parent.outcomes
        differences = item.result.differences if item.result else ()
        result = {
            "path": item.parent.name_for_users,
            "name": item.name,
            "error": str(refusal) if isinstance(refusal, HeadraceError) else None,
            "differences": [asdict(difference) for difference in differences],
        }
        setattr(report, RESULT, result)
    return report


def _skip_if_reported(config: pytest.Config, name: str, refusal: str) -> None:
    """Skip a test, or a file, that a refusal stops which another one has reported. `name`: of it."""
    reported = config.stash.setdefault(_REPORTED, {})
    first = reported.setdefault(refusal, name)
    if first != name:
        pytest.skip(f"refused for the same reason as {first}", allow_module_level=True)


def _describe(path: str, result: Result) -> str:
    """Return a line for each difference, and where the record is, as `explain --offset` takes it.

    pytest shows the first line in its summary.
    """
    lines = [f"{each.what}: expected {each.expected}, got {each.got}" for each in result.differences]
    if result.position is None:
        return "\n".join([*lines, "", f"{path}: all records"])
    topic, partition, offset = result.position
    return "\n".join([*lines, "", f"{path}: record {topic}/{partition}:{offset}"])
