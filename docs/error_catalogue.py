"""Writes docs/RECOVERY.md from the catalogue of errors: what each means, and from which level it is recovered."""

from pathlib import Path

from headrace.recovery.escalation.error_catalogue import Damage, catalogue

_INTRODUCTION = """# Recovery of checkpoints

Written by `make reference` from `recovery/escalation/damages.json`; do not edit.

How headrace classifies a failure, and from which level it recovers. [The supervisor](SUPERVISOR.md) applies the levels
by itself; [the runbook](RUNBOOK.md) says what to do by hand.

Spark writes no checksum of its offset files. With a damaged checkpoint a query may fail for ever, or start silently at
wrong offsets. headrace compares the checkpoint with its table, whose log holds the committed offsets. So for each
damage there is a level from which no record is lost or written twice.

| level | action |
| --- | --- |
| L0 | wait: storage, broker or registry is down; checkpoint and table are intact |
| L1 | start again with the same checkpoint |
| L3 | start a new run at the table's committed offsets, without a checkpoint |
| L4 | rebuild committed offsets that the log lost, from the files of the table and an older checkpoint that agrees |
| L5 | skip to the end of Kafka's log, and record the skipped offsets as a gap |

```sh
headrace doctor pipelines.yaml                  # what is wrong with the checkpoint, and which level helps
headrace doctor --checkpoint /path/of/a/query   # the same for any Structured Streaming checkpoint that reads Kafka
headrace supervisor explain pipelines.yaml      # the last failure, its class, and the next action
```

These commands change nothing. To recover by hand, run `headrace run pipelines.yaml --once --new-run --yes` (L3): it
needs no checkpoint, and the table refuses records that it already has. Never edit offset files, and never delete the
table.

Kafka may lose records too, and other records may take their offsets. What a start makes of that is in
[the runbook](RUNBOOK.md#log-cut).

Each damage was applied to checkpoints that Spark wrote. [The report](../tests/fault/REPORT.md#damaged-checkpoints)
has, for each one, what plain Spark does, what the doctor finds, what headrace does, and the seconds that each level
takes. No level has the number 2 ([ADR 55](adr/0055-no-repair-in-place.md)).
"""
_FAULT_POINTS = """## Where the process may die

`HEADRACE_FAULT=<point>:<n>` kills the process with SIGKILL the n-th time it passes a point
(`writer/core/fault_points.py`). The crash tests do this at every point. No record is lost and none is doubled:

| the process dies | durable | the next start |
| --- | --- | --- |
| in a start, or before `offsets/N` | perhaps an empty table | starts again; Spark plans the batch again |
| `before_stage` to `before_commit` | `offsets/N`, perhaps files that no entry names | reads the same range again; \
`headrace vacuum` removes the old files |
| a task only | the same | Spark retries the task in the same batch; its files get new names |
| `after_commit` to `before_redo` | the entry: rows, offsets, list of side files | \
moves a Parquet table's files to their place, skips the batch, applies the side files |
| during redo | perhaps the side files too | adds them only if the `txn` of the side table is older |
| `after_batch` | all but `commits/N` | resumes; Spark repeats the batch, which is skipped |

Between commit and redo a dead letter is listed in the main table's log and is not yet readable in the dead-letter
table.
"""
_NOT_TRIED = """## Damages outside the report

headrace cannot have these, or other tests cover them. The classifier recognises their messages all the same.

| row | damage | level | why |
| --- | --- | --- | --- |"""
_ERRORS = """## Classes of failures

`recovery/escalation/error_catalogue.py` matches an exception's text, with all its causes, against these rows in order.
"A person" means that the supervisor halts the pipeline, because a restart changes nothing.

| row | class | begins at | message |
| --- | --- | --- | --- |"""


def text() -> str:
    """Return the whole page."""
    rows = sorted(catalogue(), key=lambda damage: _order(damage.row))
    lines = [
        _INTRODUCTION,
        _FAULT_POINTS,
        _NOT_TRIED,
        *(_untried(damage) for damage in rows if damage.not_run or damage.elsewhere),
    ]
    lines += ["", _ERRORS]
    lines += [f"| {damage.row} | {damage.kind} | {_begins(damage)} | {damage.message} |" for damage in rows]
    return "\n".join(lines) + "\n"


def _order(row: str) -> tuple[int, str]:
    digits = "".join(character for character in row if character.isdigit())
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
