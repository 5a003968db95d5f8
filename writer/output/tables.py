"""Aligned text tables for terminals, pipes and files; only a terminal cuts wide columns."""

import io
import json
import os
import re
import sys
import textwrap
from collections.abc import Iterable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass
from datetime import UTC, datetime
from math import isfinite
from typing import Any

import pyarrow as pa
from rich import box
from rich.cells import cell_len, set_cell_size
from rich.console import Console, ConsoleOptions, JustifyMethod, RenderableType, RenderResult
from rich.segment import Segment
from rich.style import StyleType
from rich.table import Table
from rich.text import Text

from headrace.writer.core.text import instant as text_instant

# The width without a terminal.
_PIPE_WIDTH = 160
_GAP = "  "
# Attempts to make a table fit.
_FOLDINGS_MAX = 4
# A title is folded to this width at least.
_TITLE_MIN = 4
# Words keep this width beside numbers that fill the line.
_WORDS_MIN = 8
# The largest width of a type.
_TYPE = 13
_SHORT_TYPES = {"timestamp[us, tz=UTC]": "timestamp", "date32[day]": "date"}
# The width of an instant to the millisecond.
_INSTANT = 27


def console() -> Console:
    """Open standard output: as wide as the terminal or COLUMNS; unlimited for a pipe.

    A character that its encoding lacks becomes a question mark.
    """
    if isinstance(sys.stdout, io.TextIOWrapper):
        sys.stdout.reconfigure(errors="replace")
    if sys.stdout.isatty() or "COLUMNS" in os.environ:
        return Console(highlight=False)
    return Console(highlight=False, width=_PIPE_WIDTH)


def emit(document: object) -> None:
    """Print one JSON document on one line, at once."""
    _print_json(document, None)
    sys.stdout.flush()


def emit_whole(document: object) -> None:
    """Print one JSON document over several lines: the whole output of a command."""
    _print_json(document, 2)


def _print_json(document: object, indent: int | None) -> None:
    text = json.dumps(document, ensure_ascii=False, indent=indent)
    if not is_printable(text):
        # JSON has an escape for each character.
        text = json.dumps(document, indent=indent)
    sys.stdout.write(text + "\n")


def is_printable(text: str) -> bool:
    """Return whether the encoding of standard output has all characters of a text."""
    try:
        text.encode(sys.stdout.encoding or "utf-8")
    except UnicodeEncodeError:
        return False
    return True


def show(renderable: RenderableType, out: Console) -> None:
    """Print; without a terminal, no line ends in blanks."""
    if out.is_terminal:
        out.print(renderable, crop=False)
        return
    with out.capture() as captured:
        out.print(renderable, crop=False)
    out.out("\n".join(line.rstrip() for line in captured.get().splitlines()), highlight=False)


def show_pages(pages: Iterable[RenderableType], out: Console) -> None:
    """Print pages with an empty line between two of them, as `show` does."""
    for number, page in enumerate(pages):
        if number:
            out.print()
        show(page, out)


class NumberTable(Table):
    """A table whose columns of numbers keep the width of their cells. Where that does not fit, lines are longer."""

    def add_row(self, *cells: RenderableType | None, style: StyleType | None = None, end_section: bool = False) -> None:
        """Add a row, and widen the columns of numbers for it."""
        for column, cell in zip(self.columns, cells, strict=False):
            if column.justify == "right":
                text = Text.from_markup(cell) if isinstance(cell, str) else cell
                column.min_width = max(column.min_width or 0, cell_len(str(text or "")))
        super().add_row(*cells, style=style, end_section=end_section)

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        """Fold words and titles further where numbers, which keep their width, would make lines too long."""
        self._keep_words_of_titles(options.max_width)
        needed = self._line_width([column.min_width or 0 for column in self.columns])
        width = max(options.max_width, needed)
        narrower = options.update(max_width=width)
        for _ in range(_FOLDINGS_MAX):
            segments = [
                segment for segment in super().__rich_console__(console, narrower) if isinstance(segment, Segment)
            ]
            excess = max(map(Segment.get_line_length, Segment.split_lines(segments))) - width
            # It fits, or never will.
            if excess <= 0 or narrower.max_width - excess < needed // 2:
                break
            narrower = narrower.update(max_width=narrower.max_width - excess)
        return segments

    def _keep_words_of_titles(self, width: int) -> None:
        """Fold no title within a word, where the lines have room for all words."""
        widths = [max(column.min_width or 0, _longest_word(str(column.header))) for column in self.columns]
        if self._line_width(widths) > width:
            return
        for column, word_width in zip(self.columns, widths, strict=True):
            column.min_width = word_width

    def _line_width(self, widths: Sequence[int]) -> int:
        """Return the width of lines whose columns have these widths. Between them are padding and a divider."""
        _, right, _, left = self.padding
        return sum(widths) + (left + right + 1) * (len(widths) - 1)


def _longest_word(title: str) -> int:
    """Return the width of a title's longest word."""
    return max(map(cell_len, title.split()), default=0)


def ruled_table(*titles: str, left: int = 1, gap: int = 2, title: str | None = None) -> Table:
    """Return a table with a rule under its titles, for a page that is shown whole; the first `left` columns are words.

    Words that are too long are folded; numbers are neither folded nor cut.
    """
    table = NumberTable(
        box=box.SIMPLE_HEAD,
        padding=(0, gap, 0, 0),
        pad_edge=False,
        show_edge=False,
        title=title,
        title_justify="left",
        title_style="bold",
    )
    for number, name in enumerate(titles):
        justify: JustifyMethod = "left" if number < left else "right"
        table.add_column(name, justify=justify, overflow="fold", min_width=min(_TITLE_MIN, _longest_word(name)))
    return table


def label_grid(rows: Iterable[tuple[str, str | Text]], gap: int = 2) -> Table:
    """Return a grid of labels, and beside each a text that is folded within its own column."""
    grid = Table.grid(padding=(0, gap, 0, 0))
    grid.add_column(style="dim", no_wrap=True)
    grid.add_column(overflow="fold")
    for label, text in rows:
        # Brackets in it are no markup.
        grid.add_row(label, Text(text) if isinstance(text, str) else text)
    return grid


@dataclass(frozen=True)
class Column:
    """A column of a sheet. The last cell of a row takes what is left of the line; one on the right is never cut."""

    title: str
    right: bool = False
    style: str = ""
    width_min: int = 0
    width_max: int = 40


def numbers(*titles: str) -> list[Column]:
    """Return columns that line up on the right."""
    return [Column(title, right=True) for title in titles]


def count_cell(count: int | None, unknown: str = "-") -> str:
    """Write a count with commas; a text where it is not known."""
    if count is None:
        return unknown
    return f"{count:,}"


class TextTable:
    """Rows under columns, printed as they come. The first rows settle the widths, so that later ones line up."""

    def __init__(self, out: Console, columns: Sequence[Column]) -> None:
        self._out = out
        self._columns = columns
        self._widths: list[int] = []

    def add(self, rows: Sequence[Sequence[str | Text]]) -> None:
        """Print the rows, under the titles if they are the first. A row may end early."""
        self.settle(rows)
        for row in rows:
            self._print(row)

    def settle(self, rows: Sequence[Sequence[str | Text]]) -> None:
        """Print the titles above columns as wide as these rows want them, unless that is done."""
        if self._widths:
            return
        titles = [column.title for column in self._columns]
        for number, column in enumerate(self._columns):
            width = max(column.width_min, *_lengths(number, [titles, *rows]))
            if not column.right:
                width = min(width, column.width_max)
            self._widths.append(width)
        self._narrow()
        self._print([Text(title, "bold") for title in titles])

    def _narrow(self) -> None:
        """Take what the line does not hold from the columns of words, the widest first. Numbers keep their width."""
        last = len(self._columns) - 1
        text_columns = [number for number, column in enumerate(self._columns) if not column.right and number < last]
        # The last column of words takes what is left of the line.
        shrinkable = 0
        if not self._columns[last].right:
            shrinkable = max(0, self._widths[last] - _WORDS_MIN)
        excess = sum(self._widths) + len(_GAP) * last - shrinkable - self._out.width
        while excess > 0 and text_columns:
            widest = max(text_columns, key=self._widths.__getitem__)
            if self._widths[widest] <= _WORDS_MIN:
                break
            self._widths[widest] -= 1
            excess -= 1

    def _print(self, row: Sequence[str | Text]) -> None:
        line = Text()
        for number, (cell, column, width) in enumerate(zip(row, self._columns, self._widths, strict=False)):
            text = cell.copy() if isinstance(cell, Text) else Text(cell, column.style)
            if number == len(row) - 1 and not column.right:
                text.truncate(max(self._out.width - line.cell_len, _WORDS_MIN), overflow="ellipsis")
                line.append_text(text)
                break
            if column.right:
                line.append(" " * (width - cell_len(text.plain)))
                line.append_text(text)
            else:
                text.truncate(width, overflow="ellipsis", pad=True)
                line.append_text(text)
            line.append(_GAP)
        line.rstrip()
        self._out.print(line, no_wrap=True, crop=False, soft_wrap=True)


def hanging(out: Console, head: str, text: str, style: str = "") -> None:
    """Print a head, and a text beside it that wraps within its own columns on a terminal, and not in a pipe."""
    width = max(out.width - cell_len(head) - 1, 20)
    narrow = out.is_terminal or "COLUMNS" in os.environ
    parts = [text]
    if narrow:
        parts = textwrap.wrap(text, width, break_on_hyphens=False)
    blank = "\n" + " " * cell_len(head)
    out.print(Text(head).append(blank.join(parts), style), soft_wrap=True)


def _lengths(number: int, rows: Sequence[Sequence[str | Text]]) -> Iterator[int]:
    """Lengths of the cells of a column, those that take the rest of a line but for the last column left out."""
    for row in rows:
        if number < len(row) - 1 or number == len(rows[0]) - 1 == len(row) - 1:
            yield cell_len(str(row[number]))


def sentence(out: Console, text: str, style: str = "") -> None:
    """Print a sentence whole: a terminal wraps it, a pipe gets one line."""
    out.print(Text(text, style), soft_wrap=not out.is_terminal)


def instant(value: datetime | None) -> str:
    """Write an instant of a record as `text.instant` does, to the millisecond."""
    if value is None:
        return "no time"
    return f"{value.astimezone(UTC).replace(tzinfo=None).isoformat(' ', 'milliseconds')} UTC"


def cell(value: Any, width: int) -> Text:
    """Write a decoded value in at most `width` columns."""
    match value:
        case None:
            return Text("null", "dim")
        case "":
            return Text('""', "dim")
        case str() if value.isprintable():
            text = value
        case str():
            text = json.dumps(value, ensure_ascii=False)
        case bool():
            text = str(value).lower()
        case bytes():
            text = f"0x{value[: width // 2].hex()}"
        case datetime() if width >= _INSTANT:
            text = instant(value)
        case datetime():
            text = text_instant(value)
        case list() | dict():
            text = json.dumps(plain(value), ensure_ascii=False)
        case _:
            text = str(plain(value))
    if cell_len(text) > width:
        text = set_cell_size(text, width - 1) + "…"
    return Text(text)


def visible(value: bytes) -> str:
    """Show bytes as ASCII, a dot for each that has no glyph."""
    return "".join(chr(byte) if 32 <= byte < 127 else "·" for byte in value)  # noqa: PLR2004 - printable ASCII


def legible(value: bytes) -> str:
    """Show bytes as the text that they are, or as hex digits where they are none."""
    with suppress(UnicodeDecodeError):
        text = value.decode().translate({9: r"\t", 10: r"\n", 13: r"\r"})
        if text.isprintable():
            return text
    return f"0x{value.hex()}"


def short_type(kind: pa.DataType) -> str:
    """Return a short name of a table type."""
    text = _SHORT_TYPES.get(str(kind), str(kind))
    text = re.sub(r"decimal128\((\d+), (\d+)\)", r"decimal(\1,\2)", text).replace("element: ", "").replace("item: ", "")
    if len(text) > _TYPE:
        text = text.partition("<")[0][:_TYPE]
    return text


def plain(value: Any) -> Any:
    """Make JSON of a decoded value: times as ISO 8601, bytes as hex digits, numbers that JSON lacks as text."""
    match value:
        case None | bool() | int() | str():
            return value
        case float() if isfinite(value):
            return value
        case float():
            return str(value)
        case bytes():
            return value.hex()
        case dict():
            return {str(key): plain(item) for key, item in value.items()}
        case list() | tuple():
            return [plain(item) for item in value]
        case datetime():
            return value.isoformat().replace("+00:00", "Z")
        case _:
            return str(value)
