"""Writes tests/fault/REPORT.md and docs/FAULTS.md, its summary, from the outcomes of one run of `make test-long`."""

from collections import Counter
from collections.abc import Mapping, Sequence
from datetime import timedelta
from itertools import groupby
from pathlib import Path
from typing import Any

from headrace.bench.chaos.schedule import script
from headrace.writer.clients.java_artifacts import spark_release
from tests.fault import outcomes
from tests.fault.outcomes import Outcomes

ROOT = Path(__file__).parents[1]
SPARK = spark_release().minor
Found = Mapping[str, Any]

_SUMMARY = """# Faults

Written by `make reference` from `tests/fault/outcomes.json`; do not edit. Every row is in
[the report](../tests/fault/REPORT.md). After each fault the table is read as any reader would, the writer is started
again where it ended, and every offset is looked for in rows, dead letters and gaps. *Lost* and *twice* are counted.

| fault | cases | faults | records | lost | twice |
| --- | ---: | ---: | ---: | ---: | ---: |"""
_REPORT = """# Report of the fault suite

Written by `make reference` from `tests/fault/outcomes.json`; do not edit. `make test-long` records all of it on one
commit, in shards: `make test-long SHARD=1 SHARDS=4`. A test that is mended has its shard run again; outcomes of several
products make no report.

Each row is a fault at a moment, with a table of either format (*on*). After it the table is read as any reader would
(*seen twice*: offsets that are there twice, or above the frontier, before the restart; where the writer goes on by
itself, while it does). Then the writer is started again where it ended, and every offset below the frontier is looked
for in rows, dead letters and gaps by DuckDB over the files, those that a log replayed by hand names, or all that lie in
the folders of a Parquet table; and in process also by `headrace audit --deep`. *Lost* and *twice* are counted, not
assumed.

In process means: the steps, the stores, the table and redo as they are, without Spark and Kafka, so that each single
operation can be made to fail. What delta-rs does to the storage itself (creating a table, writing a checkpoint of its
log) does not pass there.
"""
_FAULTS = (
    "| moment | on | times | how it went | seen twice | records | lost | twice |",
    "| --- | --- | ---: | --- | ---: | ---: | ---: | ---: |",
)
_DAMAGES = f"""## Damaged checkpoints

Each row is a checkpoint that Spark {SPARK} wrote, damaged on purpose. *Plain Spark*: what a query of plain PySpark does
that goes on from it. *The doctor*: which checks of `headrace doctor` find it. *headrace*: how a start of it ends.
*Level*: what made it right ([levels](../../docs/RECOVERY.md)); none where it goes on by itself.

| row | damage | when | plain Spark | the doctor | headrace | level | records | lost | twice |
| --- | --- | --- | --- | --- | --- | --- | ---: | ---: | ---: |"""
_LEVELS = """## Seconds to recover

From where the supervisor finds the failure to the first new commit, on two cores with another test beside. Most of it
is the start of a JVM. Before L5 come starts that fail, as many as budgets allow, with pauses between them.

| level | after | seconds | aim |
| --- | --- | ---: | ---: |"""
_CHAOS = """## Ten minutes of chaos

`headrace chaos --seed N --minutes 10` does faults in an order that the seed draws, while events flow, and then looks
for each offset in rows and dead letters. What retention took before it was read, and what went with a topic that was
deleted, can be in no lake; the first is named by a gap.

| seed | format | faults | produced | in the lake | taken by retention | gone with a topic | lost | twice |
| ---: | --- | ---: | ---: | ---: | ---: | ---: | ---: | ---: |"""


def text() -> str:
    """Return docs/FAULTS.md."""
    recorded = outcomes.read()
    lines = [_SUMMARY]
    for fault, cells in groupby(_cells(recorded), key=lambda cell: cell["fault"]):
        lines.append(_sums(fault, [*cells]))
    lines.append(_sums("a checkpoint is damaged", [{**damage, "times": 1} for damage in recorded["damages"].values()]))
    chaos = recorded["chaos"].values()
    faults = sum(map(len, (_schedule(seed, run) for seed, run in recorded["chaos"].items())))
    produced, lost, twice = (sum(run[name] for run in chaos) for name in ("produced", "lost", "twice"))
    lines.append(f"| ten minutes of chaos | {len(chaos)} | {faults} | {produced:,} | {lost} | {twice} |")
    lines += _with_spark_reader()
    return "\n".join([*lines, "", f"{outcomes.commits(recorded)}."]) + "\n"


def report() -> str:
    """Return tests/fault/REPORT.md."""
    recorded = outcomes.read()
    lines = [_REPORT, f"{outcomes.commits(recorded)}.", ""]
    for fault, cells in groupby(_cells(recorded), key=lambda cell: cell["fault"]):
        lines += [f"## {fault[0].upper()}{fault[1:]}", "", *_FAULTS, *map(_fault_row, cells), ""]
    lines += _later_tests(recorded)
    damages = sorted(
        recorded["damages"].values(),
        key=lambda damage: (_order(damage["row"]), damage["damage"], damage["moment"]),
    )
    lines += [_DAMAGES, *map(_damage_row, damages), "", _LEVELS]
    for tried, level_times in sorted(recorded["levels"].items()):
        level, _, after = tried.partition(": ")
        lines.append(f"| {level} | {after} | {level_times['seconds']:.0f} | {level_times['aim_seconds']:.0f} |")
    return "\n".join([*lines, "", _CHAOS, *_chaos(recorded)]) + "\n"


def _later_tests(recorded: Outcomes) -> list[str]:
    """List the tests of the suite that are newer than the recorded commit."""
    tests = outcomes.list_cells() - {cell["test"] for cell in recorded["faults"].values()}
    if not tests:
        return []
    heading = ["## Not in this report", "", "These tests are newer than its commit; the next run records them.", ""]
    return [*heading, *(f"- `{test}`" for test in sorted(tests)), ""]


def _cells(recorded: Outcomes) -> list[Found]:
    return sorted(recorded["faults"].values(), key=lambda cell: (cell["fault"], cell["on"], cell["moment"]))


def _with_spark_reader() -> list[str]:
    """Sum up what was played once more with `kafka.reader: spark`."""
    if not outcomes.WITH_SPARK_READER.exists():
        return []
    recorded = outcomes.read(outcomes.WITH_SPARK_READER)
    cells = [*_cells(recorded), *({**damage, "times": 1} for damage in recorded["damages"].values())]
    commits = outcomes.commits(recorded, 7)
    return [_sums(f"once more with `kafka.reader: spark` ({commits})", cells)]


def _sums(fault: str, cells: Sequence[Found]) -> str:
    times, records, lost, twice = (sum(cell[name] for cell in cells) for name in ("times", "records", "lost", "twice"))
    return f"| {fault} | {len(cells)} | {times:,} | {records:,} | {lost} | {twice} |"


def _fault_row(cell: Found) -> str:
    return (
        f"| {cell['moment']} | {cell['on']} | {cell['times']} | {cell['ended']} | {cell['seen_twice']} | "
        f"{cell['records']:,} | {cell['lost']} | {cell['twice']} |"
    )


def _damage_row(damage: Found) -> str:
    names = ("row", "damage", "moment", "spark", "found", "headrace", "level")
    values = {**damage, "found": damage["found"] or "nothing", "level": damage["level"] or "none"}
    cells = [values[name].replace("|", "/") for name in names]
    return f"| {' | '.join(cells)} | {damage['records']:,} | {damage['lost']} | {damage['twice']} |"


def _chaos(recorded: Outcomes) -> list[str]:
    lines, faults = [], Counter[str]()
    for seed, run in sorted(recorded["chaos"].items(), key=lambda item: int(item[0])):
        schedule = _schedule(seed, run)
        faults.update(schedule)
        counts = (run[name] for name in ("produced", "held", "taken", "died", "lost", "twice"))
        lines.append(
            f"| {' | '.join((seed, run['format'], str(len(schedule)), *(f'{count:,}' for count in counts)))} |"
        )
    return [*lines, "", "Together: " + ", ".join(f"{n} x {fault}" for fault, n in sorted(faults.items())) + "."]


def _schedule(seed: str, run: Found) -> list[str]:
    return [event.fault for event in script(int(seed), timedelta(minutes=run["minutes"]))]


def _order(row: str) -> tuple[int, str]:
    digits = "".join(letter for letter in row if letter.isdigit())
    return (int(digits) if digits else 1000, row)


if __name__ == "__main__":
    (ROOT / "docs" / "FAULTS.md").write_text(text(), encoding="utf-8")
    (ROOT / "tests" / "fault" / "REPORT.md").write_text(report(), encoding="utf-8")
