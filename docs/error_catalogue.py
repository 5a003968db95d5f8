"""Writes docs/RECOVERY.md from the catalogue of errors: what each means, and from which level it is recovered."""

from pathlib import Path

from recovery.escalation.error_catalogue import Damage, catalogue

_INTRODUCTION = """# Recovery of checkpoints

Written by `make reference` from `recovery/escalation/damages.json`; do not edit.

Spark keeps no checksum of what it plans: a checkpoint that is damaged may stop a query for ever, or start it in silence
at other offsets. headrace holds it against its table, which is the truth, so whatever the damage is, there is a level
from which nothing is lost and nothing is twice.

| level | what is done |
| --- | --- |
| L0 | wait: storage, broker or registry is down; nothing is wrong with checkpoint or table |
| L1 | start again with the same checkpoint |
| L2 | fix it: take away a torn file, or a directory in the way, that costs nothing, after a copy of all, once a run |
| L3 | a new run from the table's frontier; it needs no checkpoint |
| L4 | the table's log forgot the frontier: put it together from its files and an older checkpoint that agrees |
| L5 | skip to the end of Kafka's log, with a gap that says exactly what was skipped |

`headrace doctor CONFIG` says what it finds, and which level that leads to; `headrace doctor --checkpoint PATH` does so
for any Structured Streaming checkpoint that reads Kafka. It changes nothing.

Each damage was tried on checkpoints that Spark wrote: what plain Spark does with it, what the doctor finds, what
headrace does, and how many seconds each level takes is in [the report](../tests/fault/REPORT.md#damaged-checkpoints).
"""
_NOT_TRIED = """## What is not tried there

These cannot happen to headrace, or are tried by other tests. The classifier knows their words all the same.

| row | damage | level | why |
| --- | --- | --- | --- |"""
_ERRORS = """## What each row means

`recovery/escalation/error_catalogue.py` reads the text of an error with all its causes; the first row that fits counts.

| row | class | begins at | message |
| --- | --- | --- | --- |"""


def text() -> str:
    """Return the whole page."""
    rows = sorted(catalogue(), key=lambda damage: _order(damage.row))
    lines = [_INTRODUCTION, _NOT_TRIED, *(_untried(damage) for damage in rows if damage.not_run or damage.elsewhere)]
    lines += ["", _ERRORS]
    lines += [f"| {damage.row} | {damage.kind} | {_begins(damage)} | {damage.message} |" for damage in rows]
    return "\n".join(lines) + "\n"


def _order(row: str) -> tuple[int, str]:
    digits = "".join(letter for letter in row if letter.isdigit())
    return (int(digits) if digits else 1000, row)


def _untried(damage: Damage) -> str:
    where = ", ".join(f"`tests/{name}`" for name in damage.elsewhere)
    why = "; ".join(filter(None, (damage.not_run, f"tried in {where}" if where else "")))
    return f"| {damage.row} | {damage.damage} | {_begins(damage)} | {why} |"


def _begins(damage: Damage) -> str:
    if damage.halt:
        return "a person"
    return "none" if damage.level is None else damage.level.label


if __name__ == "__main__":
    (Path(__file__).parent / "RECOVERY.md").write_text(text(), encoding="utf-8")
