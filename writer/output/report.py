"""What a command says: a report, which draws itself on a terminal and has the keys of `--json` as its fields."""

from collections.abc import Iterable, Mapping, Set as AbstractSet
from dataclasses import Field, fields, is_dataclass
from datetime import date, datetime, timedelta
from enum import Enum
from pathlib import Path
from typing import Any

from rich.console import Console

from headrace.writer.core.errors import HeadraceError
from headrace.writer.core.text import iso
from headrace.writer.output.tables import console, emit, emit_whole, plain

# Of a field that the page needs, and that is no key of the JSON: field(metadata=SCREEN_ONLY).
SCREEN_ONLY = {"screen_only": True}
# Of a field with values of records, bytes among them, which JSON has as `plain` writes them.
RECORD_VALUES = {"record_values": True}


class Report:
    """What a command found or did. A subclass is a dataclass; its fields are the keys of `--json`."""

    # What the command failed at, beside what it shows: it ends by this after it. A field of the reports that have one.
    failure: HeadraceError | None = None

    @property
    def exit_code(self) -> int:
        """The code that the command ends with. Another one than 0 has its values as its type: Literal[0, 1]."""
        return 0

    @property
    def has_changes(self) -> bool:
        """Whether there is anything to do, of a report that shows what a command would change."""
        return True

    def render(self, out: Console) -> None:
        """Draw it for a person."""
        raise NotImplementedError

    def document(self) -> Any:
        """Return it as JSON values. One whose document is a list, or has names as keys, says so here."""
        return json_value(self)

    def lines(self) -> Iterable[Any]:
        """Return it as lines of JSON values, of a command with a document a line. One of several lines says so here."""
        return [self.document()]


def json_value(value: Any) -> Any:
    """Return a value of a report as JSON: dataclasses by their fields, times as `iso`, durations as seconds.

    What also stands in a file has the form of the file: `to_json`. Raises TypeError for a type that has no such form.
    """
    if value is None or isinstance(value, bool | int | float | str):
        # An enum of numbers or texts is one as well.
        return value.value if isinstance(value, Enum) else value
    if isinstance(value, Enum):
        return json_value(value.value)
    if hasattr(value, "to_json"):
        return value.to_json()
    if isinstance(value, datetime):
        return iso(value)
    if isinstance(value, date):
        return value.isoformat()
    if isinstance(value, timedelta):
        return value.total_seconds()
    if isinstance(value, Path):
        return str(value)
    if isinstance(value, Mapping):
        return {str(key): json_value(inner) for key, inner in value.items()}
    if isinstance(value, list | tuple):
        return [json_value(item) for item in value]
    if isinstance(value, AbstractSet):
        return [json_value(item) for item in sorted(value)]
    if is_dataclass(value) and not isinstance(value, type):
        return {part.name: _field_value(value, part) for part in fields(value) if "screen_only" not in part.metadata}
    raise TypeError(f"a report has a {type(value).__name__}, which has no form in JSON")


def _field_value(value: Any, part: Field[Any]) -> Any:
    content = getattr(value, part.name)
    if "record_values" in part.metadata:
        return plain(content)
    return json_value(content)


class Screen:
    """Where a command's reports go: a page for a person, or JSON for a program."""

    def __init__(self, *, as_json: bool, has_lines: bool) -> None:
        """`has_lines`: JSON is a document a line, as soon as each is there; else one document over several lines."""
        # For what a person sees before the report; beside JSON it prints nothing.
        self.out = Console(quiet=True) if as_json else console()
        self.as_json = as_json
        self._has_lines = has_lines

    def show(self, report: Report) -> None:
        """Draw a report, or print its JSON."""
        if not self.as_json:
            report.render(self.out)
        elif self._has_lines:
            for line in report.lines():
                emit(line)
        else:
            emit_whole(report.document())
