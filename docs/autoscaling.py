"""Writes docs/AUTOSCALING.md from the policy, a recorded tick and the kept scores. `make reference`.

`docs/autoscaling.py --play` plays all days first (minutes); `--play day step` only these.
"""

import hashlib
import json
import sys
from collections.abc import Mapping, Sequence
from dataclasses import Field, asdict
from datetime import datetime, timedelta
from pathlib import Path
from typing import Any

from autoscaler.decision.decide import tick
from autoscaler.decision.explanation import lines
from autoscaler.decision.facts import Facts
from autoscaler.decision.history import Memory
from autoscaler.decision.policy import DEFAULTS, parameters
from autoscaler.runtime import state_store
from bench.simulation.run import RIVALS, Score, compare
from bench.simulation.trace import Trace
from bench.simulation.workloads import SHAPES, shape
from writer.core.units import show_duration

HERE = Path(__file__).parent
EXAMPLE = HERE / "examples" / "autoscale-facts.json"
RUN = HERE.parent / "tests" / "spark" / "autoscaling.json"
PICTURE = HERE / "images" / "autoscaling.png"
SCORES = HERE / "published_scores.json"
_DRAWN = "day"
LUCK_MIN = 2.0  # minutes over SLO that two runs may be apart by luck

_INTRODUCTION = """# Autoscaling

Written by `make reference` from the code, a recorded tick and kept scores; do not edit.

How many executors should carry the pipelines? `headrace autoscaler run` decides it every 15 s from facts: what waits in
Kafka and what arrives, what finished batches took, which executors are there. It asks the driver for them, and says
why. It runs beside the driver, without Spark and Java; it may die at any moment, and so may the driver. The decision is
arithmetic that can be read, and it can be tried on recorded facts and on simulated days.

```sh
headrace autoscaler run pipelines.yaml              # keep as many executors as the lag asks for
headrace autoscaler run pipelines.yaml --dry-run    # only say what it would do
headrace autoscaler explain pipelines.yaml          # what is decided now, and why; --save keeps the facts
headrace autoscaler explain --facts docs/examples/autoscale-facts.json      # the same of facts that were kept
headrace simulate --trace day --plot day.png  # what a day costs, beside other policies
```

## Running it

```yaml
kafka:
  bootstrap_servers: broker-1:9092
registry:
  url: http://registry:8081
checkpoints: s3://lake/checkpoints
spark:
  master: spark://spark-master:7077     # or k8s://…; on one machine, to try it: local-cluster[3,2,2048]
  conf:
    spark.executor.cores: "4"
    spark.executor.memory: 4g
    spark.cores.max: "40"               # standalone: as much as ten executors have
autoscaler:
  token: ${env:HEADRACE_SCALE_TOKEN}    # the same for driver and autoscaler
  executors_min: 1
  executors_max: 10
  policy:
    utilization_target: 0.75                      # any parameter of the table below
pipelines:
  clicks:
    topics: [clicks]
    table:
      location: s3://lake/clicks
    event_time:
      field: event_time
```

Driver and autoscaler read the same file and run on one machine, or in one pod. Executors need the same Python packages
as the driver. With `local[*]` there are no executors: both sides say so, and what to use instead.

- **The driver** takes `POST /scale?executors=N` with the token, over loopback only. It asks Spark for the total, again
  every 15 s, and tells the youngest to go when no batch has tasks. Those finish what they have and are seen to be gone;
  one that still works after `autoscaler.drain_within` is killed. `/status`, its page and `headrace status` tell how
  many there are, how many are asked for and how many would be right, with the last verdict and its reason. What was
  wanted last is kept beside the runs, and wanted again by the next driver.
- **The autoscaler** keeps what it decided before it asks for it, and asks again at every tick. At
  `http://127.0.0.1:9645` it answers `/metrics` ([names](METRICS.md#of-the-autoscaler)), `/healthz`, and `/status` with
  the last decision, all its arithmetic, and the last 100 changes of mind.
- **Executors that are lost** are replaced by the cluster, as the total is asked for again and again. Those that do not
  come for `start_max` are a quota.
- **A large batch is cut into three ranges for each slot there may ever be**, so executors beyond the partitions help
  while it catches up. While more waits than `commit.max_records`, every slot gets a task, for files down to an eighth
  of `roll.target_file_size`; they are merged when their bucket is sealed, where `compact.at_seal` holds, as it does for
  Delta tables unless it is set otherwise ([compaction](COMPACTION.md)).

## How it decides

1. **A slot's true rate** is the records it carries in a second of work. Two things are taken out of a batch: what it
   costs whatever its rows (the driver's phases; what tasks take before their first row, where batches of several sizes
   show it), and slots that wait for the last wave: 48 ranges on 40 slots take two waves, as on 24. So the rate does
   not change with the number of executors.
2. **Capacity** of n executors: with S records a second of all slots that have work, an overhead of o seconds a batch
   and `max_delay` D, they carry S (D - o) / D for ever without a batch longer than D; full batches of `max_records` R
   one after the other carry R / (o + R / S).
3. **Need**: arrivals / `utilization_target`, the backlog over `catch_up_duration`, and what piles up until executors
   come, as it was learned how long they take. Backlog is only what waits beyond `max_delay` and a batch: the lag of a
   healthy pipeline goes up and down so far. Of several pipelines each need is divided by what the pipeline could carry
   alone; the sum is the share of the slots that is wanted.
4. **Diagnosis** before action: what executors would not fix is told as itself, with what would fix it (below).
5. **The least number** whose capacity covers the need is wanted. More than what is there: at once, when over
   `utilization_max`. Fewer: when below `utilization_min` throughout `down`, as many as the most wanted in it. Between
   the two nothing changes.
6. **What was learned**: how long executors take to come, and what an added slot brings over one that is there (from
   three changes on). Executors that brought less than `yield_min` of what was expected block further ones for a while.
   Executors that went and came back soon make the next going wait longer.

Old or missing facts, recovery, failing storage or Kafka: what was wanted last is asked for again, and nothing changes.

### What it does not know

- A Kubernetes of many nodes: it was run on a real API server, with pods that are processes of one machine
  ([how](DEPLOY.md#how-this-is-tested)).
- The heap of executors: Spark tells only the highest there ever was. Pressure is seen in garbage collection.
- How many executors a cluster would grant: it is seen when they do not come for `start_max`, and tried again later.
- A standalone cluster gives a new application all it has, up to `spark.cores.max`. What is too much of it goes as the
  load allows, or at once to what a driver before was told.
- Executors that are new are slow for a batch: what their tasks need is loaded then. That is reckoned as overhead.
"""

_VERDICTS = {
    "recovery": ("hold", "The pipeline is on a level of recovery: its restarts look like too few executors."),
    "failing": ("hold", "Storage or Kafka fails, or a batch is tried again: executors would ask it even more."),
    "not_scalable": ("hold", "There are no executors to scale, as with `local[*]`, or Spark's settings forbid it."),
    "blind": ("hold", "Facts are missing or older than `facts_age_max`."),
    "too_few_batches": ("hold", "No rate is known: fewer than `batches_min` batches, or none in the window."),
    "excluded": ("hold", "A minute of `excluded`."),
    "admission_capped": ("no more", "Full batches of `max_records` are not enough whatever the slots: raise it."),
    "driver_bound": ("no more", "Most of a batch is the driver's own, and records are late: larger batches."),
    "skew": ("no more", "Slots wait for one partition: split ranges, or spread keys."),
    "few_ranges": ("no more", "All slots that a full batch has ranges or files for work already."),
    "ineffective": ("no more", "The last executors were in vain: something else is the limit."),
    "quota": ("no more", "The cluster grants no more."),
    "memory_pressure": ("no fewer", "Garbage collection takes long: with fewer executors each holds more."),
    "stuck_partition": ("note", "A partition stands still over batches: it is named, its lag left out."),
}

_WORLD = """## Simulated days

The world of `headrace simulate` is not the model: tasks have luck (10 %), partitions are uneven, slots slow
each other down, machines are 6 % faster and slower through the day, executors take a minute or two to come and now and
then one dies, batches that run are finished by the slots that came meanwhile. What a policy sees are facts, 20 batches
at most, as `/status` has them. It is still a simulation: one pipeline, no cluster, no restarts, no neighbours.

- *min over SLO*: minutes in which the oldest waiting record is late by more than 5 min beyond `max_delay`, outages
  themselves left out. *Reversals*: changes that go back on the one before within 30 min. *Executor-hours* count from
  the request on.
- *Lag threshold*: KEDA's formula through Kubernetes' HPA with its defaults; the setting is the work, in seconds of an
  executor's rate, that may wait for each executor. *Of equal cost*: the setting that costs what headrace costs, found
  by bisection (within 2 % where one exists).
- *Static of equal cost*: headrace's executor-hours, rounded up, all day. *Flink's autoscaler*: its formula and
  defaults, without the restart that a change costs there. *Spark's dynamic allocation*: its defaults.
- *tuned*: parameters or rules were changed after this day had been played. *untuned*: it was played meanwhile, and
  nothing was changed for it. *held out*: first played after the last change.
"""

_RUN_WORDS = """## A run on a cluster

A master, a worker with {most} cores, executors, driver, autoscaler and broker, all processes on one machine of two
cores: `tests/spark/test_autoscaling.py` runs it and keeps what it saw. Two cores cannot carry more with more executors,
so a bucketer that sleeps lets each slot carry {slot:,} records a second at most; all else is as it is. Minutes are
seconds: ticks of {tick:.0f} s, a window of {window} s, fewer executors after {down} s. The topic has {partitions}
partitions. The load stays up until nothing has been late for 40 s.
"""

_KEDA = """## For teams that run KEDA

[`docs/examples/keda.yaml`](examples/keda.yaml) has two ScaledObjects for the workers of a standalone cluster: by the
lag of the group to which a pipeline commits its offsets (`commit_offsets_to_group`), and by
`headrace_executors_desired` of an autoscaler with `--dry-run`. What a threshold on lag does through a day stands below.
They are written after KEDA's documentation and were not run on a KEDA.
"""

_READ = """Two minutes are luck: so far apart are runs that differ only in when executors come and die.

The lag threshold goes back on itself a hundred times a day, headrace hardly ever, and time over SLO is as much or less
at the same cost. But on most days neither is ever over the SLO, and there the threshold's latest record is
often the earlier one (below), as it follows each batch. A threshold that is set to cost less than headrace often stays
within the SLO too: it lives on the lag that the SLO allows, and swings. A day that fails the aim of one reversal at
most has load that comes back every hour (its executors are kept from the third hour on, at nearly the cost of having
all of them all day), or no plan at all.
"""


def text() -> str:
    """Return the whole page."""
    parts = [_INTRODUCTION, *_verdicts(), *_example(), *_parameters(), *_run(), _KEDA, _WORLD, *_summary(), *_scores()]
    return "\n".join(parts)


def _run() -> list[str]:
    """Tell of the run on a cluster that a test kept."""
    run = json.loads(RUN.read_text(encoding="utf-8"))
    at, settings, samples = run["marks"], run["settings"], run["samples"]
    latest = max(one["lag_s"] or 0.0 for one in samples)
    low, high = samples[0]["load_per_s"], max(one["load_per_s"] for one in samples)
    asked_s, held_s = at["asked_s"] - at["step_up_s"], at["step_down_s"] - at["step_up_s"]
    limit_s = settings["max_delay_s"] + settings["lag_slo_s"]
    late = [one["at_s"] - at["step_up_s"] for one in samples if (one["lag_s"] or 0.0) > limit_s]
    calm = f"from {min(late):.0f} s to {max(late):.0f} s after the step" if late else "never"
    return [
        _RUN_WORDS.format(
            partitions=settings["partitions"], most=settings["executors_max"], slot=settings["slot_per_s"],
            tick=settings["interval_s"], window=settings["window_s"], down=settings["down_s"],
        ),
        "| what | seen |", "| --- | --- |",
        f"| load steps up, from {low:,} to {high:,} records a second | at {at['step_up_s']:.0f} s |",
        f"| executors are asked for | {asked_s:.0f} s later; a tick is {settings['interval_s']:.0f} s |",
        f"| most that worked at once | {at['peak']} |",
        f"| oldest record that waited, at the worst | {latest:.0f} s |",
        f"| later than the SLO, {limit_s:.0f} s | {calm}, which lasts {held_s:.0f} s |",
        f"| load steps down; one executor is left | {at['down_s'] - at['step_down_s']:.0f} s later |",
        f"| executors that went as they were told; were lost | {samples[-1]['gone']}; {samples[-1]['lost']} |",
        f"| tasks that failed | {run['failed_tasks']} |",
        f"| records sent, rows in the table | {run['sent']:,}, {run['rows']:,}: each offset once |", "",
        "![Load and commits, lateness, executors through the run](images/scaling.png)", "",
        "Its decisions:", "",
        "```", *(f"{_second(one, run):>5} s  {one['verdict']:<8} {one['why']}" for one in run["events"]), "```", "",
    ]  # fmt: skip


def _second(event: Mapping[str, Any], run: Mapping[str, Any]) -> str:
    began = datetime.fromisoformat(run["began"])
    return f"{max(0.0, (datetime.fromisoformat(event['at']) - began).total_seconds()):.0f}"


def _verdicts() -> list[str]:
    rows = [f"| `{kind}` | {effect} | {why} |" for kind, (effect, why) in _VERDICTS.items()]
    return ["| diagnosis | effect | what it is |", "| --- | --- | --- |", *rows, ""]


def _example() -> list[str]:
    known = state_store.read_file(Facts, EXAMPLE)
    decision, _ = tick(DEFAULTS, Memory(), known, known.at)
    return [
        "## A decision, explained", "",
        "`headrace autoscaler explain --facts docs/examples/autoscale-facts.json` prints this; `--json` all of it.", "",
        "```", *lines(DEFAULTS, decision, known.at), "```", "",
    ]  # fmt: skip


def _parameters() -> list[str]:
    rows = [
        f"| `{name}` | {_shown(one)} | {_unit(one)} | {one.metadata['why']} |" for name, one in parameters().items()
    ]
    return [
        "## Parameters", "",
        "`--set name=value` changes one, and so does `autoscaler.policy` in the configuration, where `executors_min`",
        "and `executors_max` stand beside it. `run` takes `--interval` for `interval`.", "",
        "| parameter | default | unit | what it does, and why it is so |", "| --- | ---: | --- | --- |", *rows, "",
    ]  # fmt: skip


def _unit(one: Field[Any]) -> str:
    return "duration" if one.metadata["unit"] == "s" else str(one.metadata["unit"])


def _shown(one: Field[Any]) -> str:
    value = one.default
    if one.metadata["unit"] == "s":
        return show_duration(timedelta(seconds=value))
    return "none" if value == () else f"{value:g}" if isinstance(value, float) else str(value)


def _summary() -> list[str]:
    """Hold headrace against the lag threshold of equal cost, one line a day."""
    rows = []
    for name, kept in scores().items():
        one, other = _of(kept, "headrace"), _of(kept, "lag threshold of equal cost")
        more = one["minutes_over_slo"] - other["minutes_over_slo"]
        calm = one["reversals"] <= 1
        rows.append(
            f"| `{name}` | {SHAPES[name]().purpose} | {one['executor_hours']:.0f} / {other['executor_hours']:.0f} | "
            f"{one['minutes_over_slo']:.1f} / {other['minutes_over_slo']:.1f} | "
            f"{one['reversals']} / {other['reversals']} | "
            f"{'less' if more < -LUCK_MIN else 'as much' if more <= LUCK_MIN else '**more**'} | "
            f"{'yes' if calm else '**no**'} |"
        )
    return [
        "headrace / lag threshold of equal cost:", "",
        "| day | parameters | executor-hours | min over SLO | reversals | time over SLO | a reversal at most |",
        "| --- | --- | ---: | ---: | ---: | --- | --- |", *rows, "", _READ,
    ]  # fmt: skip


def _scores() -> list[str]:
    page = [
        "### All policies", "",
        "Each table is what `headrace simulate --trace <day>` prints. `docs/autoscaling.py --play`: all.",
        "", f"![A simulated day: load, lateness and executors of several policies](images/{PICTURE.name})", "",
    ]  # fmt: skip
    for name, kept in scores().items():
        trace = SHAPES[name]()
        page += [
            f"**{name}** ({trace.purpose}): {trace.about}.", "",
            "| policy | setting | executor-hours | min over SLO | changes | reversals | latest record |",
            "| --- | --- | ---: | ---: | ---: | ---: | ---: |",
        ]  # fmt: skip
        page += [
            f"| {'**headrace**' if one['policy'] == 'headrace' else one['policy']} | {one['setting']} | "
            f"{one['executor_hours']:.1f} | {one['minutes_over_slo']:.1f} | {one['scalings']} | {one['reversals']} | "
            f"{one['late_max_s']:.0f} s |"
            for one in kept["scores"]
        ]
        page.append("")
    return page


def scores() -> dict[str, Any]:
    """Return the kept scores by trace, each with its mark and the policy that played it."""
    found = json.loads(SCORES.read_text(encoding="utf-8"))
    return {name: found[name] for name in SHAPES if name in found}


def mark(trace: Trace) -> str:
    """Return what tells one trace from another, its arrivals included."""
    return hashlib.sha256(json.dumps(asdict(trace), sort_keys=True).encode()).hexdigest()[:16]


def policy() -> dict[str, Any]:
    """Return the defaults as JSON has them."""
    found: dict[str, Any] = json.loads(json.dumps(asdict(DEFAULTS)))
    return found


def _keep(trace: Trace, played: Sequence[Score]) -> None:
    rows = [{name: value for name, value in asdict(one).items() if name != "points"} for one in played]
    found = {**scores(), trace.name: {"mark": mark(trace), "policy": policy(), "scores": rows}}
    SCORES.write_text(json.dumps({name: found[name] for name in SHAPES if name in found}, indent=1) + "\n")


def _of(kept: Mapping[str, Any], policy: str) -> Mapping[str, Any]:
    found: Mapping[str, Any] = next(one for one in kept["scores"] if one["policy"] == policy)
    return found


def play(names: list[str]) -> None:
    """Play days with all policies and keep their scores."""
    for name in names or SHAPES:
        trace = shape(name)
        played = compare(trace, DEFAULTS, RIVALS)
        _keep(trace, played)
        if name == _DRAWN:
            from bench.simulation.report import draw

            shown = ("headrace", "Flink's autoscaler, defaults", "lag threshold of equal cost")
            draw(trace, [one for one in played if one.policy in shown], PICTURE)


if __name__ == "__main__":
    if sys.argv[1:2] == ["--play"]:
        play(sys.argv[2:])
    (HERE / "AUTOSCALING.md").write_text(text(), encoding="utf-8")
