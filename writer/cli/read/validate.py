"""`headrace validate`: checks all that a start needs: configuration, Kafka, registry, records, locations, machine.

Creates nothing but probe files, which it removes. A pipeline that runs is not disturbed.
"""

import textwrap
from collections import Counter
from collections.abc import Mapping
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console
from rich.text import Text

from writer.clients import kafka_sample
from writer.clients.driver_endpoint import answers
from writer.config.loader import load
from writer.config.pipelines import Config
from writer.core.errors import ConfigError, HeadraceError
from writer.core.text import plural
from writer.output import tables
from writer.output.cli_options import ConfigFile, Pipelines, json_option
from writer.preflight import host_checks, source_checks
from writer.preflight.finding import MARKS, PLAIN_MARKS, Finding, Status, failure, good, not_checked
from writer.schemas.registry import SchemaSource, source
from writer.schemas.registry_answers import without_user

_STYLES = {"ok": "green", "warning": "yellow", "failed": "bold red", "not_checked": "dim"}
_WORDS: Mapping[Status, str] = {
    "ok": "fine", "warning": "to look at", "failed": "wrong", "not_checked": "not checked",
}  # fmt: skip
_SHARED = ("broker", "registry", "checkpoints", "java", "jars", "http", "scheduling")
_NAME = 13  # columns for the name of a check
_INDENT = _NAME + 4
_CONFIGURATION = 2  # exit code


def run_validate(
    path: Path, only: list[str] | None, *, offline: bool, records: int, as_json: bool, now: datetime
) -> int:
    """Check a configuration and what it names, and show each finding. Returns 0, or 2 when something is wrong.

    `records`: how many of each pipeline's to sample; 0 takes none.
    """
    shown = Findings(None if as_json else tables.console())
    shown.title(str(path))
    try:
        config = _asking_once(load(path))
        names = config.chosen(only)
    except ConfigError as error:
        listed = "\n" in str(error)  # one line for each fault, with its own fix
        found = Finding("file", "failed", str(error)) if listed else failure("file", error)
        shown.add(found if found.fix else replace(found, fix="Correct the file. docs/REFERENCE.md lists every key."))
        for check in _SHARED:
            shown.add(not_checked(check, "the file cannot be used"))
        return shown.end()
    shown.add(good("file", f"{plural(len(config.pipelines), 'pipeline')}: {', '.join(config.pipelines)}"))
    reach = _reach(config, names, shown, offline=offline)
    drivers = [] if offline else [name for name in names if answers(config, name) is not None]
    places = host_checks.ProbedLocations(config.s3.settings, config.catalog_place)
    for finding in host_checks.machine(config, drivers, places, offline=offline):
        shown.add(finding)
    for name in names:
        settings = config.pipelines[name]
        shown.title(f"{name}: {settings.topics} → {settings.table.location}")
        for finding in source_checks.pipeline(name, config, reach, records, now):
            shown.add(finding, name)
        for finding in host_checks.tables(name, settings, places, offline=offline):
            shown.add(finding, name)
        for finding in host_checks.nesting(name, config, offline=offline, no_catalog=places.no_catalog):
            shown.add(finding, name)
        shown.add(host_checks.running_driver(config, name, offline=offline), name)
    return shown.end()


def _asking_once(config: Config) -> Config:
    """Return the configuration for a look at things: a catalog that does not answer is not asked again."""
    if config.catalog is None:
        return config
    return config.model_copy(update={"catalog": config.catalog.model_copy(update={"retry_timeout": timedelta(0)})})


class Findings:
    """Findings as they come: printed at once for a person, kept for one JSON document for a machine."""

    def __init__(self, out: Console | None) -> None:
        self._out, self._found = out, list[Finding]()
        self._alike: list[Finding] = []  # not checked for one reason: they share a line

    def title(self, text: str) -> None:
        """Begin a section."""
        self._settle()
        if self._out is not None:
            if self._found:
                self._out.print()
            self._out.print(Text(text, "bold"), soft_wrap=True)

    def add(self, finding: Finding, pipeline: str | None = None) -> None:
        """Show a finding."""
        finding = replace(finding, pipeline=pipeline)
        self._found.append(finding)
        if self._alike and finding.message != self._alike[0].message:
            self._settle()
        if finding.status == "not_checked":
            self._alike.append(finding)
        else:
            self._print(finding, finding.check, finding.message)

    def end(self) -> int:
        """Sum up. Returns the exit code."""
        self._settle()
        numbers = Counter(finding.status for finding in self._found)
        if self._out is None:
            tables.emit_whole([finding.document() for finding in self._found])
        else:
            counts = [f"{numbers[status]:,} {words}" for status, words in _WORDS.items() if numbers[status]]
            self._out.print()
            self._out.print(Text(", ".join(counts), _STYLES["failed"] if numbers["failed"] else ""))
        return _CONFIGURATION if numbers["failed"] else 0

    def _settle(self) -> None:
        """Print those that were not checked for one reason."""
        if self._alike:
            names = ", ".join(finding.check.replace("_", " ") for finding in self._alike)
            why = self._alike[0].message
            number = len(self._alike)
            self._print(self._alike[0], *((names, why) if number == 1 else (f"{number} checks", f"{why} ({names})")))
        self._alike = []

    def _print(self, finding: Finding, name: str, message: str) -> None:
        if self._out is None:
            return
        style = _STYLES[finding.status]
        marks = MARKS if self._out.encoding.startswith("utf") else PLAIN_MARKS
        dim = "dim" if finding.status == "not_checked" else ""
        line = Text("  ").append(marks[finding.status], style).append(f" {name.replace('_', ' '):<{_NAME - 1}} ", dim)
        for at, part in enumerate(self._wrapped(message)):
            line.append(part if at == 0 else "\n" + " " * _INDENT + part, dim)
        if finding.fix:
            for at, part in enumerate(self._wrapped(finding.fix, 2)):
                line.append("\n" + " " * _INDENT + ("→ " if at == 0 else "  ") + part, style)
        self._out.print(line, soft_wrap=True)

    def _wrapped(self, text: str, indent: int = 0) -> list[str]:
        """Cut a sentence into lines of the width; each line of its own stays one."""
        assert self._out is not None
        width = max(self._out.width - _INDENT - indent - 1, 20)
        pieces = (textwrap.wrap(line, width, break_on_hyphens=False) or [""] for line in text.splitlines())
        return [part for piece in pieces for part in piece]


def _reach(config: Config, names: list[str], shown: Findings, *, offline: bool) -> source_checks.ReachableSystems:
    """Ask the broker and the registry whether they answer, and show it."""
    cluster, no_cluster = None, "--offline"
    if offline:
        shown.add(not_checked("broker", no_cluster))
    else:
        cluster = kafka_sample.open_cluster(config.kafka)
        try:
            number = cluster.brokers()
            answer = "1 broker answers" if number == 1 else f"{number} brokers answer"
            shown.add(good("broker", f"{answer} at {config.kafka.bootstrap_servers}"))
        except HeadraceError as error:
            shown.add(failure("broker", error))
            cluster, no_cluster = None, "no broker answers"
    schemas, no_schemas = _registry(config, names, shown, offline=offline)
    return source_checks.ReachableSystems(cluster, no_cluster, schemas, no_schemas)


def _registry(config: Config, names: list[str], shown: Findings, *, offline: bool) -> tuple[SchemaSource | None, str]:
    url = config.registry.url
    if offline and url is not None:
        shown.add(not_checked("registry", "--offline"))
        return None, "--offline"
    try:
        schemas = source(config.registry)
        schemas.known(next(iter(config.pipelines[names[0]].topics.names), "headrace"))  # any topic: does it answer?
    except HeadraceError as error:
        shown.add(failure("registry", error))
        return None, "no registry answers" if url is not None else "a schema file cannot be read"
    files = plural(len(config.registry.files), "schema file")
    shown.add(good("registry", files if url is None else f"answers at {without_user(url)}"))
    return schemas, ""


def _print_schema(wanted: bool) -> None:
    if wanted:
        tables.emit_whole(Config.json_schema())
        raise typer.Exit


def validate(
    config: ConfigFile,
    pipeline: Pipelines = None,
    offline: Annotated[
        bool, typer.Option("--offline", help="Ask neither Kafka nor a registry, nor a catalog.")
    ] = False,
    sample: Annotated[
        int, typer.Option("--sample", min=0, help="How many records of each pipeline to look at; 0: none.")
    ] = 1_000,
    as_json: Annotated[bool, json_option("a list of findings")] = False,
    _schema: Annotated[
        bool,
        typer.Option(
            "--json-schema",
            is_eager=True,
            callback=_print_schema,
            help="Print the JSON schema of the file, for editors, and exit.",
        ),
    ] = False,
) -> None:
    """Check everything that a start needs: file, Kafka, registry, records, tables, this machine. Changes nothing.

    Exit codes: 0 nothing is wrong, 2 something is.
    """
    now = datetime.now(UTC)
    raise typer.Exit(run_validate(config, pipeline, offline=offline, records=sample, as_json=as_json, now=now))
