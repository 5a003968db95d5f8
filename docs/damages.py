"""Writes docs/RECOVERY.md from the catalogue of damages and what was seen of each when it was tried.

`make test-long` records, and writes.
"""

from collections import Counter
from datetime import timedelta
from pathlib import Path

from bench.chaos.schedule import script
from recovery.escalation.error_catalogue import SPARK, Damage, catalogue
from tests.fault import seen
from tests.fault.damages import COMMITTED, Outcome, read

_INTRODUCTION = f"""# Recovery of checkpoints

Written by `make reference` from the catalogue, `recovery/escalation/damages.json`, and from what the tests have
recorded in `tests/fault/recovered.json`; do not edit. `make test-long` records all of it anew.

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

## What was tried

Each row is a checkpoint that Spark {SPARK} wrote, damaged on purpose. *Plain Spark*: what a query of plain PySpark does
that goes on from it. *The doctor*: which of its checks find it. *headrace*: how a start of it ends. *Rung*: what made
it right; none where it goes on by itself. Afterwards every offset below the frontier is looked for in rows, dead
letters and gaps, by DuckDB over the files: *lost* and *twice* are counted, not assumed.
"""
_HEAD = (
    "| row | damage | when | plain Spark | the doctor | headrace | level | records | lost | twice |",
    "| --- | --- | --- | --- | --- | --- | --- | ---: | ---: | ---: |",
)
_TIMES = """## How long it takes

From where the supervisor finds the failure to the first new commit, seconds, on two cores with another test beside.
Most of it is the start of a JVM. Before L5 come starts that fail, as many as budgets allow, with pauses between them.

| level | after | seconds | aim |
| --- | --- | ---: | ---: |"""
_CHAOS = """## Ten minutes of chaos

`headrace chaos --seed N --minutes 10` does faults in an order that the seed draws, while events flow, and then looks
for each offset in rows and dead letters. What retention took before it was read, and what went with a topic that was
deleted, can be in no lake; the first is named by a gap.

| seed | format | faults | produced | in the lake | taken by retention | gone with a topic | lost | twice |
| ---: | --- | ---: | ---: | ---: | ---: | ---: | ---: | ---: |"""
_NOT_TRIED = """## What is not tried here

These cannot happen to headrace, or are tried by other tests. The classifier knows their words all the same.

| row | damage | level | why |
| --- | --- | --- | --- |"""
_SAID = """## What each row means

`recovery/escalation/error_catalogue.py` reads the text of an error with all its causes; the first row that fits counts.

| row | class | begins at | what is said |
| --- | --- | --- | --- |"""


def text() -> str:
    """Return the whole page."""
    found = sorted(read(COMMITTED), key=lambda one: (_order(one.row), one.damage, one.moment))
    lines = [_INTRODUCTION, _sum(found), "", *_HEAD, *map(_row, found), "", *_long_runs(), "", _NOT_TRIED]
    tried = {one.row for one in found}
    lines += [_untried(damage) for damage in catalogue() if damage.row not in tried]
    lines += ["", _SAID]
    lines += [
        f"| {damage.row} | {damage.kind} | {_begins(damage)} | {damage.message} |"
        for damage in sorted(catalogue(), key=lambda damage: _order(damage.row))
    ]
    return "\n".join(lines) + "\n"


def _long_runs() -> list[str]:
    """Say what long runs found: how long each level took, and what chaos did."""
    found = seen.read(seen.COMMITTED)
    lines = [_TIMES]
    for tried, one in sorted(found["rungs"].items()):
        level, _, after = tried.partition(": ")
        lines.append(f"| {level} | {after} | {one['seconds']:.0f} | {one['aim_seconds']:.0f} |")
    lines += ["", _CHAOS]
    faults = Counter[str]()
    for seed, one in sorted(found["chaos"].items(), key=lambda item: int(item[0])):
        events = script(int(seed), timedelta(minutes=one["minutes"]))
        faults.update(event.fault for event in events)
        counts = (one[name] for name in ("produced", "held", "taken", "died", "lost", "twice"))
        cells = (seed, one["format"], len(events), *(f"{count:,}" for count in counts))
        lines.append(f"| {' | '.join(map(str, cells))} |")
    return [*lines, "", "Together: " + ", ".join(f"{n} x {fault}" for fault, n in sorted(faults.items())) + "."]


def _order(row: str) -> tuple[int, str]:
    digits = "".join(dead_letter for dead_letter in row if dead_letter.isdigit())
    return (int(digits) if digits else 1000, row)


def _sum(found: list[Outcome]) -> str:
    records, lost, twice = (sum(getattr(one, name) for one in found) for name in ("records", "lost", "twice"))
    return f"**{len(found)} rows, {records:,} records: {lost} lost, {twice} twice.**"


def _row(one: Outcome) -> str:
    cells = (one.row, one.damage, one.moment, one.spark, one.found or "nothing", one.headrace, one.level or "none")
    return f"| {' | '.join(cell.replace('|', '/') for cell in cells)} | {one.records:,} | {one.lost} | {one.twice} |"


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
