"""`headrace schema plan`: shows what a schema would do to a pipeline's table."""

import json
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated, Literal

import typer
from rich.console import Console

from headrace.writer.core.errors import ConfigError
from headrace.writer.core.pages import page_address
from headrace.writer.core.text import plural
from headrace.writer.formats.value_rules import TextColumn
from headrace.writer.framing.wire_format import parse_id
from headrace.writer.output.command import command
from headrace.writer.output.command_inputs import Pipeline
from headrace.writer.output.report import SCREEN_ONLY, Report
from headrace.writer.output.tables import hanging, plain, sentence
from headrace.writer.preflight.schema_effects import SchemaEffect, SpecEffect, plan_schema

_FIXES = {
    "dead_letter": "Give the field a type that fits, or another name; "
    f"{page_address('docs/SCHEMAS.md')} has the rules.",
    "spec": "Keep what the spec names, or change the spec before the schema is registered; "
    f"{page_address('docs/SPECS.md')}.",
    "quarantined": "Keep the field, or set event_time.field to one that every schema has.",
}
_EVERY_RECORD = "Every record of it becomes a row."
_EVERY_UNLESS_SPEC = "Every record of it becomes a row, unless the spec says otherwise."
# Columns of a terminal line for the effect.
_HEAD = 9
# Columns of a terminal line for a column's name, at least.
_NAME_MIN = 16


@dataclass(frozen=True)
class SchemaPlanReport(Report):
    """What a schema would do to the table of a pipeline."""

    pipeline: str
    # How it was named in the command.
    schema: str
    # Of the table, and schemas that are registered.
    columns: int
    registered: int
    compatible: bool
    outcome: str
    # The first of the reasons why its records would not become rows; None: they would.
    reason: str | None
    reasons: Sequence[str]
    # None: nothing reads its records.
    decoder: str | None
    spec: SpecEffect | None
    effects: Sequence[SchemaEffect]
    # Columns of a JSON Schema that have no type, and why.
    json_texts: Sequence[TextColumn]
    location: str = field(metadata=SCREEN_ONLY)

    @property
    def exit_code(self) -> Literal[0, 1]:
        """1 where its records would not become rows."""
        return 0 if self.compatible else 1

    def render(self, out: Console) -> None:
        """Draw the effects, what reads its records, and what becomes of them."""
        others = plural(self.registered, "registered schema")
        columns = plural(self.columns, "column")
        sentence(out, f"{self.pipeline}: {self.schema} on top of {columns} and {others}, for {self.location}", "bold")
        width = max([_NAME_MIN, *(len(effect.column) for effect in self.effects)])
        for effect in self.effects:
            hanging(out, f"  {effect.effect:<{_HEAD}}{effect.column:<{width}}  ", _describe_effect(effect))
        if not self.effects and self.decoder is not None:
            sentence(out, "  It fills the columns as they are.")
        if self.spec is not None and self.decoder is not None:
            hanging(out, f"  {'spec':<{_HEAD}}{self.spec.name:<{width}}  ", _describe_spec(self.spec))
        for text in self.json_texts:
            hanging(out, f"  {'text':<{_HEAD}}{text.path:<{width}}  ", f"kept as JSON text: {text.reason}")
        if self.decoder == "native":
            hanging(out, f"  {'decoder':<{_HEAD}}", self.decoder)
        elif self.decoder is not None:
            slow = f"{self.decoder}, one record at a time, at a fraction of the speed ({page_address('docs/TYPES.md')})"
            hanging(out, f"  {'decoder':<{_HEAD}}", slow, "yellow")
        if self.compatible:
            sentence(out, _EVERY_RECORD if self.spec is None else _EVERY_UNLESS_SPEC, "green")
        else:
            self._render_reasons(out)

    def _render_reasons(self, out: Console) -> None:
        fate = "are quarantined"
        if self.outcome == "dead_letter":
            fate = "become dead letters"
        label = "parked"
        for reason in self.reasons[:-1]:
            hanging(out, f"  {label:<{_HEAD}}", f"{reason}.", "red")
            label = ""
        message = f"{self.reasons[-1]}. Its records {fate}; all others go on."
        hanging(out, f"  {label:<{_HEAD}}", message, "red")
        by_spec = self.spec is not None and f"spec {self.spec.name!r}:" in self.reasons[0]
        hanging(out, f"  {'':<{_HEAD}}", _FIXES["spec" if by_spec else self.outcome])


@command(
    exits={
        0: "every record becomes a row",
        1: "its records would be parked, or the registry does not answer",
        2: "configuration",
    }
)
def plan(
    pipeline: Pipeline,
    schema_id: Annotated[
        str | None, typer.Option("--id", help="A schema of the registry, by its id: a number, or a GUID.")
    ] = None,
    file: Annotated[
        Path | None,
        typer.Option(
            "--file",
            help="A schema in a file, registered or not; or columns that JSON is to have (.yaml), as columns.declared "
            "has them.",
            dir_okay=False,
        ),
    ] = None,
    message: Annotated[
        str | None,
        typer.Option("--message", help="Of a Protobuf schema with several messages, the full name of the one."),
    ] = None,
) -> SchemaPlanReport:
    """Say what a schema would do: columns added and widened, casts, defaults, or why its records would be parked.

    It is looked at as the next one, on top of the table's columns and of all registered schemas. Changes nothing.
    """
    verdict = plan_schema(pipeline.config, pipeline.name, schema_id=_parse_id(schema_id), file=file, message=message)
    return SchemaPlanReport(
        pipeline=pipeline.name,
        schema=verdict.label,
        columns=len(verdict.before.columns),
        registered=len(verdict.before.schemas),
        compatible=verdict.reason is None,
        outcome=verdict.outcome,
        reason=verdict.reason,
        reasons=verdict.reasons,
        decoder=verdict.decoder,
        spec=verdict.spec,
        effects=verdict.effects,
        json_texts=verdict.json_texts,
        location=pipeline.config.pipelines[pipeline.name].table.location,
    )


def _parse_id(text: str | None) -> int | None:
    """Return the number that an id is; None where none was given. Raises ConfigError."""
    if text is None:
        return None
    try:
        return parse_id(text)
    except ValueError as error:
        raise ConfigError(f"--id {text} is no id of a schema. Give a number such as 7, or a GUID.") from error


def _describe_spec(spec: SpecEffect) -> str:
    text = "the table's columns stay as they are"
    if spec.adds:
        text = f"the table gets {', '.join(spec.adds)}"
    if spec.leaves_out:
        text += f"; left out or renamed: {', '.join(spec.leaves_out)}"
    return text


def _describe_effect(effect: SchemaEffect) -> str:
    filled = "null"
    if effect.value is not None:
        filled = f"the default {json.dumps(plain(effect.value), ensure_ascii=False)}"
    match effect.effect:
        case "adds":
            return f"{effect.now}; records of schemas without it get {filled}"
        case "widens":
            return f"{effect.was} → {effect.now}; files that are there stay as they are"
        case "casts":
            return f"{effect.was} → {effect.now}, in this schema's records"
        case "renames":
            return f"filled by field {effect.was}"
        case "lacks":
            return f"{effect.now}; its records get {filled}"
