"""Shows the results of tests as pytest prints them, and writes them as JUnit XML."""

import os
import re
import textwrap
from collections.abc import Iterable, Iterator
from pathlib import Path
from xml.etree import ElementTree as ET

from rich.console import Console
from rich.text import Text

from writer.core.errors import ConfigError
from writer.core.text import plural
from writer.preflight.testing.comparison import Difference, Result
from writer.preflight.testing.runner import FileResult

# pytest has this width without a terminal.
_PIPE_WIDTH = 80
_PROGRESS = len(" [100%]")
# XML 1.0, "Characters".
_NO_XML = re.compile(r"[^\t\n\r\x20-\ud7ff\ue000-\ufffd\U00010000-\U0010ffff]")


class Reporter:
    """Prints results while tests run."""

    def __init__(self, out: Console, tests: int, *, verbose: bool) -> None:
        """`tests`: how many there are to come, about."""
        self._out = out
        self._tests = max(tests, 1)
        self._verbose = verbose
        self._done = 0
        self._width = out.width if out.is_terminal or "COLUMNS" in os.environ else _PIPE_WIDTH
        self._results = list[FileResult]()

    def show(self, result: FileResult) -> None:
        """Print a file's tests: a mark for each, or a line."""
        self._results.append(result)
        marks = [Text("F", "red") if test.differences else Text(".", "green") for test in result.tests]
        self._done += len(marks)
        if result.error:
            self._line(Text(f"{result.path} ").append("E", "red"))
        elif self._verbose:
            for test in result.tests:
                word = Text("FAILED", "red") if test.differences else Text("PASSED", "green")
                self._out.print(Text(f"{result.path}::{test.name} ").append_text(word), soft_wrap=True)
        else:
            line = Text(f"{result.path} ")
            for mark in marks:
                if line.cell_len + _PROGRESS >= self._width:
                    self._line(line)
                    line = Text()
                line.append_text(mark)
            self._line(line)

    def end(self, seconds: float) -> None:
        """Print what failed, and the sums."""
        files_with_error = [file for file in self._results if file.error]
        failed = [(file, test) for file in self._results for test in file.failed]
        if files_with_error:
            self._rule("ERRORS", "=")
        for file in files_with_error:
            self._rule(f"ERROR at {file.path}", "_", "red")
            self._error(file.error)
        if failed:
            self._rule("FAILURES", "=")
        for file, test in failed:
            self._rule(f"{file.path}::{test.name}", "_", "red")
            for difference in test.differences:
                self._difference(difference)
            self._out.print(f"\n{where(file, test)}", soft_wrap=True)
        if files_with_error or failed:
            self._rule("short test summary info", "=", "cyan")
        for file, test in failed:
            self._summary("FAILED", f"{file.path}::{test.name}", in_short(test))
        for file in files_with_error:
            self._summary("ERROR", str(file.path), file.error)
        passed = sum(len(file.tests) for file in self._results) - len(failed)
        counts = []
        if failed:
            counts.append(f"{len(failed)} failed")
        if passed:
            counts.append(f"{passed} passed")
        if files_with_error:
            counts.append(plural(len(files_with_error), "error"))
        style = "yellow"
        if failed or files_with_error:
            style = "red"
        elif passed:
            style = "green"
        self._rule(f"{', '.join(counts) or 'no tests ran'} in {seconds:.2f}s", "=", style)

    def _line(self, line: Text) -> None:
        progress = f"[{self._done * 100 // self._tests:3}%]"
        blank = " " * max(self._width - line.cell_len - len(progress), 1)
        self._out.print(line.append(blank + progress, "cyan"), soft_wrap=True)

    def _rule(self, title: str, sign: str, style: str = "") -> None:
        if sign == "=":
            style = f"bold {style}"
        sides = max(self._width - len(title) - 2, 2)
        text = f"{sign * (sides // 2)} {title} {sign * (sides - sides // 2)}"
        self._out.print(Text(text, style), soft_wrap=True)

    def _difference(self, difference: Difference) -> None:
        self._error(difference.what)
        for label, text in (("  expected: ", difference.expected), ("  got:      ", difference.got)):
            self._error(text, label)

    def _error(self, text: str, label: str = "") -> None:
        blank = " " * len(label)
        for number, line in enumerate(_wrap(text, max(self._width - len(label) - 4, 20))):
            self._out.print(Text(f"E   {blank if number else label}{line}", "red"), soft_wrap=True)

    def _summary(self, word: str, test: str, why: str) -> None:
        line = Text(word, "red").append(f" {test}", "bold red").append(f" - {' '.join(why.split())}", "default")
        line.truncate(max(self._width, len(word) + len(test) + 10), overflow="ellipsis")
        self._out.print(line, soft_wrap=True)


def where(file: FileResult, test: Result) -> str:
    """Write where a record is, as `explain --offset` takes it."""
    if test.position is None:
        return f"{file.path}: all records"
    topic, partition, offset = test.position
    return f"{file.path}: record {topic}/{partition}:{offset}"


def in_short(test: Result) -> str:
    """Return the first difference of a test in one line."""
    first = test.differences[0]
    return f"{first.what}: expected {first.expected}, got {first.got}"


def write_junit(path: Path, results: Iterable[FileResult]) -> None:
    """Write a file that CI servers read: a suite, a test case for each test. Raises ConfigError."""
    files = list(results)
    root = ET.Element("testsuites")
    suite = ET.SubElement(
        root,
        "testsuite",
        {
            "name": "headrace",
            "tests": str(sum(len(file.tests) + bool(file.error) for file in files)),
            "failures": str(sum(len(file.failed) for file in files)),
            "errors": str(sum(bool(file.error) for file in files)),
            "skipped": "0",
            "time": f"{sum(file.seconds for file in files):.3f}",
        },
    )
    for file in files:
        # The records of a file go through the steps together, so each test has an equal part of the time.
        test_seconds = f"{file.seconds / max(len(file.tests), 1):.3f}"
        for test in file.tests:
            case = _case(suite, file, test.name, test_seconds)
            if test.differences:
                failure = ET.SubElement(case, "failure", message=_text(in_short(test)))
                failure.text = _text("\n".join([*_lines(test.differences), where(file, test)]))
        if file.error:
            error = ET.SubElement(_case(suite, file, "steps", test_seconds), "error", message=_text(file.error))
            error.text = _text(file.error)
    ET.indent(root)
    try:
        ET.ElementTree(root).write(path, encoding="utf-8", xml_declaration=True)
    except OSError as error:
        raise ConfigError(f"--junit {path} cannot be written: {error.strerror}. Name another place.") from error


def _case(suite: ET.Element, file: FileResult, name: str, time: str) -> ET.Element:
    attributes = {"classname": _text(str(file.path)), "name": _text(name), "file": _text(str(file.path)), "time": time}
    return ET.SubElement(suite, "testcase", attributes)


def _lines(differences: Iterable[Difference]) -> Iterator[str]:
    return (
        f"{difference.what}\n  expected: {difference.expected}\n  got:      {difference.got}"
        for difference in differences
    )


def _wrap(text: str, width: int) -> list[str]:
    return [part for line in text.splitlines() for part in textwrap.wrap(line, width, break_on_hyphens=False) or [""]]


def _text(value: str) -> str:
    return _NO_XML.sub("\N{REPLACEMENT CHARACTER}", value)
