"""Numbers and characters are whole on every screen: in tables that stream or not, JSON and SQL, and in a pipe."""

import json
import sys
from collections.abc import Callable
from io import BytesIO, StringIO, TextIOWrapper

import pytest
from rich.console import Console
from rich.text import Text

from headrace.writer.cli.look.ddl import DdlReport, TableDdl
from headrace.writer.core.errors import ConfigError
from headrace.writer.output.report import Screen
from headrace.writer.output.tables import Column, TextTable, emit, emit_whole, numbers, ruled_table, show

NUMBERS = [f"{n:,}" for n in (0, 4_915, 987_654_321, 9_223_372_036_854_775_807)]
WORDS = "a bucket of a long name, hour=2026-11-20T05/country=Deutschland"


def page(out: Console, count: int) -> None:
    """Draw a table as `headrace audit` does, of so many columns."""
    table = ruled_table("partition", *["dead letters"] * count, gap=1)
    for number in NUMBERS:
        table.add_row(WORDS, *[number] * (count - 1), Text(number, "yellow"))
    table.add_row("all", *[""] * (count - 1))
    show(table, out)


def sheet(out: Console, count: int) -> None:
    """Print rows as `headrace buckets` does: words, numbers, words."""
    made = TextTable(out, [Column("bucket", width_max=60), Column("state"), *numbers(*"n" * count), Column("why")])
    for number in NUMBERS:  # a later one is longer than those that settled the widths
        made.add([[WORDS, "closed", *[number] * count, WORDS]])


def settled(out: Console, count: int) -> None:
    """Print the same where all rows are known from the start."""
    made = TextTable(out, [Column("bucket", width_max=60), Column("state"), *numbers(*"n" * count), Column("why")])
    made.add([[WORDS, "closed", *[number] * count, WORDS] for number in NUMBERS])


def last(out: Console, count: int) -> None:
    """Print rows that end in numbers."""
    made = TextTable(out, [Column("bucket"), *numbers(*"n" * count)])
    made.add([[WORDS, *[number] * count] for number in NUMBERS])


@pytest.mark.parametrize("terminal", [True, False], ids=["terminal", "pipe"])
@pytest.mark.parametrize("width", [60, 80, 100, 160])
@pytest.mark.parametrize("count", [1, 3, 8])
@pytest.mark.parametrize("draw", [page, sheet, settled, last])
def test_no_number_is_cut_or_folded(
    draw: Callable[[Console, int], None], count: int, width: int, terminal: bool
) -> None:
    out = Console(file=StringIO(), width=width, force_terminal=terminal, color_system=None, highlight=False)
    draw(out, count)
    text = out.file.getvalue()
    for number in NUMBERS:
        rows = [line for line in text.splitlines() if line.split().count(number) == count]
        assert len(rows) == 1, f"{number} stands {count} times on one line:\n{text}"


@pytest.mark.parametrize(("width", "is_whole"), [(44, True), (43, False)])
def test_a_title_is_folded_within_a_word_only_where_its_words_do_not_fit(width: int, is_whole: bool) -> None:
    """The longest words of the titles and the gaps between them take 44 cells."""
    out = StringIO()
    table = ruled_table("partition", "to", "late table", "quarantined", "tombs", left=1)
    table.add_row("clicks/0", "1", "2", "3", "4")
    show(table, Console(file=out, width=width))
    words = out.getvalue().split()
    assert ({"partition", "late", "table", "quarantined", "tombs"} <= set(words)) is is_whole


def test_titles_give_way_too() -> None:
    out = Console(file=StringIO(), width=72, highlight=False)
    table = ruled_table("partition", "to", *["dead letters"] * 7, gap=1)
    table.columns[0].min_width = 12
    table.add_row("clicks/0", "14,000", *["1,400"] * 7)
    show(table, out)
    lines = out.file.getvalue().splitlines()
    assert max(map(len, lines)) <= 72
    assert lines[-1].split() == ["clicks/0", "14,000", *["1,400"] * 7]


@pytest.mark.parametrize("width", [60, 80, 100, 160])
@pytest.mark.parametrize("draw", [page, settled, last])
def test_words_give_way_so_that_lines_fit_where_they_can(draw: Callable[[Console, int], None], width: int) -> None:
    out = Console(file=StringIO(), width=width, force_terminal=True, color_system=None, highlight=False)
    draw(out, 1)
    assert max(map(len, out.file.getvalue().splitlines())) <= width


@pytest.mark.parametrize("encoding", ["utf-8", "latin-1", "ascii"])
@pytest.mark.parametrize("print_json", [emit, emit_whole])
def test_json_keeps_each_character_in_any_encoding(
    monkeypatch: pytest.MonkeyPatch, encoding: str, print_json: Callable[[object], None]
) -> None:
    content = BytesIO()
    monkeypatch.setattr(sys, "stdout", TextIOWrapper(content, encoding=encoding))
    document = {"größe": ["名", "half of a pair: \ud800"]}
    print_json(document)
    sys.stdout.flush()
    assert json.loads(content.getvalue().decode(encoding)) == document


@pytest.mark.parametrize(("encoding", "has_all"), [("utf-8", True), ("latin-1", False)])
def test_sql_is_printed_as_it_is_or_not_at_all(monkeypatch: pytest.MonkeyPatch, encoding: str, has_all: bool) -> None:
    content = BytesIO()
    monkeypatch.setattr(sys, "stdout", TextIOWrapper(content, encoding=encoding))
    statement = "CALL register_table('/lake/名')"
    report = DdlReport("trino", [TableDdl("p", None, [statement], None, ["a note"], "p", "p")])
    screen = Screen(as_json=False, has_lines=False)
    if has_all:
        screen.show(report)
    else:
        with pytest.raises(ConfigError, match=f"encoding {encoding}, which lacks characters"):
            screen.show(report)
    sys.stdout.flush()
    assert content.getvalue().decode(encoding) == (f"-- a note\n{statement};\n" if has_all else "")
