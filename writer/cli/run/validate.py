"""`headrace validate`: checks all that a start needs: configuration, Kafka, registry, records, locations, machine."""

import textwrap
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Annotated, Literal

import typer
from rich.console import Console
from rich.text import Text

from headrace.writer.config.pipelines import Config
from headrace.writer.output.cli_options import ConfigFile, Pipelines
from headrace.writer.output.command import command
from headrace.writer.output.report import Report, Screen
from headrace.writer.output.tables import emit_whole
from headrace.writer.preflight.checks.finding import MARKS, PLAIN_MARKS, Finding, Status
from headrace.writer.preflight.checks.start_check import Section, check_start

_STYLES: Mapping[Status, str] = {"ok": "green", "warning": "yellow", "failed": "bold red", "not_checked": "dim"}
_STATUS_NAMES: Mapping[Status, str] = {
    "ok": "fine",
    "warning": "to look at",
    "failed": "wrong",
    "not_checked": "not checked",
}
# Columns for the name of a check, and for what is before its message.
_NAME_WIDTH = 13
_INDENT = _NAME_WIDTH + 4
_MESSAGE_WIDTH_MIN = 20


@dataclass(frozen=True)
class ValidateReport(Report):
    """What the checks of a start found."""

    findings: Sequence[Finding]

    @property
    def exit_code(self) -> Literal[0, 2]:
        """2 where something is wrong."""
        if any(finding.status == "failed" for finding in self.findings):
            return 2
        return 0

    def render(self, out: Console) -> None:
        """Sum up; the findings are on the page, each since it came."""
        numbers = Counter(finding.status for finding in self.findings)
        counts = [f"{numbers[status]:,} {name}" for status, name in _STATUS_NAMES.items() if numbers[status]]
        out.print()
        out.print(Text(", ".join(counts), _STYLES["failed"] if numbers["failed"] else ""))


class FindingPage:
    """Prints findings as they come."""

    def __init__(self, out: Console) -> None:
        self._out = out
        self._is_empty = True
        # Findings that were not checked for one reason: they share a line.
        self._same_reason: list[Finding] = []

    def add_section(self, section: Section) -> None:
        """Begin a section."""
        self.finish()
        if not self._is_empty:
            self._out.print()
        self._out.print(Text(section.title, "bold"), soft_wrap=True)

    def add(self, finding: Finding) -> None:
        """Show a finding."""
        self._is_empty = False
        if self._same_reason and finding.message != self._same_reason[0].message:
            self.finish()
        if finding.status == "not_checked":
            self._same_reason.append(finding)
        else:
            self._print(finding, finding.check, finding.message)

    def finish(self) -> None:
        """Print those that were not checked for one reason, which may share it with the next."""
        findings = self._same_reason
        self._same_reason = []
        if not findings:
            return
        name = findings[0].check
        message = findings[0].message
        if len(findings) > 1:
            checks = ", ".join(finding.check.replace("_", " ") for finding in findings)
            name = f"{len(findings)} checks"
            message = f"{message} ({checks})"
        self._print(findings[0], name, message)

    def _print(self, finding: Finding, name: str, message: str) -> None:
        style = _STYLES[finding.status]
        text_style = "dim" if finding.status == "not_checked" else ""
        marks = MARKS if self._out.encoding.startswith("utf") else PLAIN_MARKS
        text = Text("  ").append(marks[finding.status], style)
        text.append(f" {name.replace('_', ' '):<{_NAME_WIDTH - 1}} ", text_style)
        text.append(f"\n{' ' * _INDENT}".join(_wrap(message, self._out.width - _INDENT - 1)), text_style)
        if finding.fix:
            text.append(f"\n{' ' * _INDENT}→ ", style)
            text.append(f"\n{' ' * _INDENT}  ".join(_wrap(finding.fix, self._out.width - _INDENT - 3)), style)
        self._out.print(text, soft_wrap=True)


def _wrap(text: str, width: int) -> list[str]:
    """Cut a text into lines of a width; each line of its own stays one."""
    lines: list[str] = []
    for line in text.splitlines():
        lines += textwrap.wrap(line, max(width, _MESSAGE_WIDTH_MIN), break_on_hyphens=False) or [""]
    return lines


def _print_schema(is_asked: bool) -> None:
    if is_asked:
        emit_whole(Config.json_schema())
        raise typer.Exit


@command(exits={0: "nothing is wrong", 1: "the file cannot be read now", 2: "something is wrong"})
def validate(
    config: ConfigFile,
    pipeline: Pipelines = None,
    offline: Annotated[
        bool, typer.Option("--offline", help="Ask neither Kafka nor a registry, nor a catalog.")
    ] = False,
    sample: Annotated[
        int, typer.Option("--sample", min=0, help="How many records of each pipeline to look at; 0: none.")
    ] = 1_000,
    _schema: Annotated[
        bool,
        typer.Option(
            "--json-schema",
            is_eager=True,
            callback=_print_schema,
            help="Print the JSON schema of the file, for editors, and exit.",
        ),
    ] = False,
    *,
    screen: Screen,
) -> ValidateReport:
    """Check everything that a start needs: file, Kafka, registry, records, tables, this machine. Changes nothing."""
    return run_validate(config, pipeline, offline=offline, records=sample, now=datetime.now(UTC), out=screen.out)


def run_validate(
    path: Path, pipelines: list[str] | None, *, offline: bool, records: int, now: datetime, out: Console
) -> ValidateReport:
    """Check a configuration and what it names, and show each finding as it comes.

    `records`: how many of each pipeline's to sample; 0 takes none.
    """
    page = FindingPage(out)
    findings: list[Finding] = []
    for finding in check_start(path, pipelines, offline=offline, records=records, now=now):
        if isinstance(finding, Section):
            page.add_section(finding)
        else:
            findings.append(finding)
            page.add(finding)
    page.finish()
    return ValidateReport(findings)
