"""Holds the account against what was counted in files. Pure."""

from collections.abc import Mapping, Sequence

from writer.ledger.deep import DataFile, Found
from writer.ledger.statement import Line, Problem
from writer.tables.parts import Part


def totals(noun: str, files: Sequence[DataFile], expected: int, withdrawn: int) -> list[Problem]:
    """Compare the rows that the tables' logs count in their files. Files of other clients may say nothing."""
    if any(file.rows is None for file in files):
        return []
    there = sum(file.rows or 0 for file in files) - withdrawn
    return [] if there == expected else [Problem(f"the files hold {there:,} {noun}, the account has {expected:,}")]


def compared(
    lines: Mapping[Part, Line], found: Mapping[Part, Found], rows_removed: int, letters_removed: int, *, exact: bool
) -> list[Problem]:
    """Hold what was counted in the files against the account, part by part; removed rows are known only in sum."""
    problems: list[Problem] = []
    short: list[Problem] = []
    rows_short = letters_short = 0
    for part, there in found.items():
        line = lines.get(part)
        if there.astray:
            problems.append(
                Problem("offsets that no commit accounts for have rows or letters", part, tuple(there.astray))
            )
        if line is None:
            continue
        if there.twice:
            problems.append(Problem("offsets are there more than once", part, tuple(there.twice)))
        rows, letters = (
            line.outcomes["rows"] + line.outcomes["late"] - there.rows,
            line.letters - sum(there.letters.values()),
        )
        rows_short, letters_short = rows_short + rows, letters_short + letters
        if rows > 0 or letters > 0:
            short.append(Problem(_missing(line, there, rows, letters), part, tuple(there.nowhere)))
        elif (rows < 0 or letters < 0) and not there.twice:
            what = f"there are {-rows:,} rows and {-letters:,} dead letters more than the account has"
            problems.append(Problem(what, part))
    explained = rows_short == rows_removed and letters_short == letters_removed
    if not exact:
        explained = rows_short <= rows_removed and letters_short <= letters_removed
    return problems if explained and not problems else [*problems, *short]


def _missing(line: Line, there: Found, rows: int, letters: int) -> str:
    parts = [
        f"{count:,} {noun} are not there" for noun, count in (("rows", rows), ("dead letters", letters)) if count > 0
    ]
    unheld = line.holes + line.outcomes["tombstones"]
    among = f", among them {unheld:,} that were tombstones or held no record" if unheld else ""
    return f"{' and '.join(parts)}; {there.nowhere_offsets:,} offsets are in neither table{among}"
