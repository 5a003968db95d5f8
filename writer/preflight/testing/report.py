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
from writer.preflight.testing.comparison import Difference, Result
from writer.preflight.testing.runner import FileResult

_PIPE_WIDTH = 80  # as pytest has it without a terminal
_PROGRESS = len(" [100%]")
_NO_XML = re.compile(r"[^\t\n\r\x20-\ud7ff\ue000-\ufffd\U00010000-\U0010ffff]")  # XML 1.0, "Characters"


class Reporter:
    """Prints results while tests run."""

    def __init__(self, out: Console, tests: int, *, verbose: bool) -> None:
        """`tests`: how many there are to come, about."""
        self._out, self._tests, self._verbose, self._done = out, max(tests, 1), verbose, 0
        self._width = out.width if out.is_terminal or "COLUMNS" in os.environ else _PIPE_WIDTH
        self._found = list[FileResult]()

    def show(self, found: FileResult) -> None:
        """Print a file's tests: a mark for each, or a line."""
        self._found.append(found)
        marks = [Text("F", "red") if one.differences else Text(".", "green") for one in found.tests]
        self._done += len(marks)
        if found.error:
            self._line(Text(f"{found.path} ").append("E", "red"))
        elif self._verbose:
            for one in found.tests:
                word = Text("FAILED", "red") if one.differences else Text("PASSED", "green")
                self._out.print(Text(f"{found.path}::{one.name} ").append_text(word), soft_wrap=True)
        else:
            line = Text(f"{found.path} ")
            for mark in marks:
                if line.cell_len + _PROGRESS >= self._width:
                    self._line(line)
                    line = Text()
                line.append_text(mark)
            self._line(line)

    def end(self, seconds: float) -> None:
        """Print what failed, and the sums."""
        broken = [one for one in self._found if one.error]
        failed = [(one, test) for one in self._found for test in one.failed]
        if broken:
            self._rule("ERRORS", "=")
        for one in broken:
            self._rule(f"ERROR at {one.path}", "_", "red")
            self._error(one.error)
        if failed:
            self._rule("FAILURES", "=")
        for one, test in failed:
            self._rule(f"{one.path}::{test.name}", "_", "red")
            for difference in test.differences:
                self._difference(difference)
            self._out.print(f"\n{where(one, test)}", soft_wrap=True)
        if broken or failed:
            self._rule("short test summary info", "=", "cyan")
        for one, test in failed:
            self._summary("FAILED", f"{one.path}::{test.name}", in_short(test))
        for one in broken:
            self._summary("ERROR", str(one.path), one.error)
        passed = sum(len(one.tests) for one in self._found) - len(failed)
        counts = ((len(failed), "failed"), (passed, "passed"), (len(broken), "error" if len(broken) == 1 else "errors"))
        text = ", ".join(f"{count} {word}" for count, word in counts if count) or "no tests ran"
        self._rule(f"{text} in {seconds:.2f}s", "=", "red" if failed or broken else "green" if passed else "yellow")

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

    def _difference(self, one: Difference) -> None:
        self._error(one.what)
        for label, text in (("  expected: ", one.expected), ("  got:      ", one.got)):
            self._error(text, label)

    def _error(self, text: str, label: str = "") -> None:
        blank = " " * len(label)
        for at, line in enumerate(_wrapped(text, max(self._width - len(label) - 4, 20))):
            self._out.print(Text(f"E   {blank if at else label}{line}", "red"), soft_wrap=True)

    def _summary(self, word: str, test: str, why: str) -> None:
        line = Text(word, "red").append(f" {test}", "bold red").append(f" - {' '.join(why.split())}", "default")
        line.truncate(max(self._width, len(word) + len(test) + 10), overflow="ellipsis")
        self._out.print(line, soft_wrap=True)


def where(file: FileResult, test: Result) -> str:
    """Write where a record is, as `explain --offset` takes it."""
    if test.place is None:
        return f"{file.path}: all records"
    topic, partition, offset = test.place
    return f"{file.path}: record {topic}/{partition}:{offset}"


def in_short(test: Result) -> str:
    """Return the first difference of a test in one line."""
    first = test.differences[0]
    return f"{first.what}: expected {first.expected}, got {first.got}"


def write_junit(path: Path, found: Iterable[FileResult]) -> None:
    """Write a file that CI servers read: a suite, a test case for each test. Raises ConfigError."""
    files = list(found)
    root = ET.Element("testsuites")
    suite = ET.SubElement(root, "testsuite", {
        "name": "headrace", "tests": str(sum(len(one.tests) + bool(one.error) for one in files)),
        "failures": str(sum(len(one.failed) for one in files)), "errors": str(sum(bool(one.error) for one in files)),
        "skipped": "0", "time": f"{sum(one.seconds for one in files):.3f}",
    })  # fmt: skip
    for one in files:
        each = f"{one.seconds / max(len(one.tests), 1):.3f}"  # the records of a file go through the steps together
        for test in one.tests:
            case = _case(suite, one, test.name, each)
            if test.differences:
                failure = ET.SubElement(case, "failure", message=_text(in_short(test)))
                failure.text = _text("\n".join([*_lines(test.differences), where(one, test)]))
        if one.error:
            error = ET.SubElement(_case(suite, one, "steps", each), "error", message=_text(one.error))
            error.text = _text(one.error)
    ET.indent(root)
    try:
        ET.ElementTree(root).write(path, encoding="utf-8", xml_declaration=True)
    except OSError as error:
        raise ConfigError(f"--junit {path} cannot be written: {error.strerror}. Name another place.") from error


def _case(suite: ET.Element, file: FileResult, name: str, time: str) -> ET.Element:
    about = {"classname": _text(str(file.path)), "name": _text(name), "file": _text(str(file.path)), "time": time}
    return ET.SubElement(suite, "testcase", about)


def _lines(differences: Iterable[Difference]) -> Iterator[str]:
    return (f"{one.what}\n  expected: {one.expected}\n  got:      {one.got}" for one in differences)


def _wrapped(text: str, width: int) -> list[str]:
    return [part for line in text.splitlines() for part in textwrap.wrap(line, width, break_on_hyphens=False) or [""]]


def _text(value: str) -> str:
    return _NO_XML.sub("\N{REPLACEMENT CHARACTER}", value)
