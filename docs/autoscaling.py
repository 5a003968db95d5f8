"""Writes docs/AUTOSCALING.md and docs/AUTOSCALING_RESULTS.md from the policy, a recorded evaluation and saved scores.

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

from headrace.autoscaler.decision.decide import tick
from headrace.autoscaler.decision.explanation import lines
from headrace.autoscaler.decision.facts import Facts
from headrace.autoscaler.decision.history import Memory
from headrace.autoscaler.decision.policy import DEFAULTS, parameters
from headrace.autoscaler.runtime import state_store
from headrace.bench.simulation.run import RIVALS, Score, compare
from headrace.bench.simulation.trace import Trace
from headrace.bench.simulation.workloads import SHAPES, shape
from headrace.writer.core.units import show_duration

HERE = Path(__file__).parent
EXAMPLE = HERE / "examples" / "autoscale-facts.json"
RUN = HERE.parent / "tests" / "spark" / "autoscaling.json"
PICTURE = HERE / "images" / "autoscaling.png"
SCORES = HERE / "published_scores.json"
_DRAWN = "day"
LUCK_MIN = 2.0  # minutes over SLO that two runs may be apart by luck

_INTRODUCTION = """# Autoscaling

Written by `make reference` from the code and a recorded evaluation; do not edit.

`headrace autoscaler run` keeps as many Spark executors as the pipelines need. Every 15 s it reads lag and arrivals,
the durations of finished batches, and the registered executors; it computes a number and requests it from the driver,
with the reason. It runs beside the driver, without Spark and Java. Autoscaler and driver may each die at any time.

```sh
headrace autoscaler run pipelines.yaml              # request executors by the lag
headrace autoscaler run pipelines.yaml --dry-run    # only log the decisions
headrace autoscaler explain pipelines.yaml          # the decision for now, with its arithmetic; --save keeps the facts
headrace autoscaler explain --facts docs/examples/autoscale-facts.json      # the decision for saved facts
headrace simulate --trace day --plot day.png        # a simulated day, compared with other policies
```

[Results](AUTOSCALING_RESULTS.md) has a run on a cluster and simulated days beside other policies.

## Set it up

```yaml
kafka:
  bootstrap_servers: broker-1:9092
registry:
  url: http://registry:8081
checkpoints: s3://lake/checkpoints
spark:
  master: spark://spark-master:7077     # or k8s://…; to try it on one machine: local-cluster[3,2,2048]
  conf:
    spark.executor.cores: "4"
    spark.executor.memory: 4g
    spark.cores.max: "40"               # standalone cluster: the cores of ten executors
autoscaler:
  token: ${env:HEADRACE_SCALE_TOKEN}    # the same for driver and autoscaler
  min_executors: 1
  max_executors: 10
  policy:
    utilization_target: 0.75            # any parameter of the table below
pipelines:
  clicks:
    topics: [clicks]
    table:
      location: s3://lake/clicks
    event_time:
      field: event_time
```

Driver and autoscaler read the same file and run on one machine or in one pod; [the chart](DEPLOY.md) deploys both.
Executors need the same Python packages as the driver. `local[*]` has no executors: both programs then say which master
to use instead.

- **The driver** accepts `POST /scale?executors=N` with the token, on loopback only. Every 15 s it requests that total
  from Spark. To remove executors it decommissions the youngest ones when no batch has tasks; they finish their work
  first. One that still works after `autoscaler.drain_within` is killed. The driver saves the number, so the next
  driver requests it again. `/status`, the page and `headrace status` show the registered, requested and recommended
  number with the reason.
- **The autoscaler** saves a decision before it requests it, and repeats the request at each evaluation.
  `http://127.0.0.1:9645` serves `/metrics` ([names](METRICS.md#of-the-autoscaler)), `/healthz`, and `/status` with the
  last decision, its arithmetic, and the last 100 changes.
- **Lost executors** are replaced by the cluster, because the total is requested again and again. Executors that do not
  register within `max_start` count as a quota.
- **Large batches** are split into three offset ranges for each slot of `max_executors`, so executors beyond the number
  of partitions help with a backlog. If more than `commit.max_offsets` wait, each slot gets a task, and files may be as
  small as an eighth of `roll.target_file_size`. Where `compact.at_seal` is on, the default except for Parquet tables,
  [compaction](COMPACTION.md) merges them when their bucket is sealed.

## How it decides

1. **Rate of a slot**: records for each second of work. Two things are excluded: the fixed cost of a batch (the
   driver's phases, and what tasks take before their first row), and slots that wait for the last wave (48 ranges on 40
   slots take two waves, as on 24). So the rate does not depend on the number of executors.
2. **Capacity** of n executors: if all slots carry S records a second, a batch has an overhead of o seconds, and
   `max_delay` is D, they carry S (D - o) / D without a batch longer than D. Full batches of `max_offsets` R carry R /
   (o + R / S).
3. **Need**: arrivals / `utilization_target`, plus the backlog over `catch_up_duration`, plus what arrives until new
   executors have started, but no more than the pipeline's [rate limit](OPERATION.md#rate-limit). The backlog is what
   waits beyond `max_delay` and one batch. For several pipelines, each need
   is divided by the pipeline's capacity alone; the sum is the share of slots.
4. **Diagnosis**: a cause that executors cannot fix is reported with its remedy (table below).
5. **Number**: the smallest one whose capacity covers the need. If utilization is above `max_utilization`, it is
   requested at once. If utilization was below `min_utilization` throughout `down`, the largest number of that time is
   requested. In between nothing changes.
6. **Learning**: the autoscaler measures how long executors take to start and, from three changes on, how much an added
   slot brings. If executors brought less than `min_yield` of the expected rate, it adds none for a while. If executors
   were removed and came back soon, it waits longer before the next removal.

If facts are missing or old, or during recovery and failures of storage or Kafka, the last number stays requested.

### Limits

- It was run on a real Kubernetes API server whose pods are processes of one machine, not on several nodes
  ([how](DEPLOY.md#how-this-is-tested)).
- Spark reports only the peak of an executor's heap, so memory pressure is measured by garbage collection.
- It cannot know how many executors a cluster would grant. It learns it when they do not start within `max_start`, and
  tries again later.
- A standalone cluster gives a new application all cores up to `spark.cores.max`. The surplus goes when the load allows
  it, or at once if an earlier driver had a saved number.
- New executors are slow for one batch, because their tasks load code and schemas. That time counts as overhead.
"""

_VERDICTS = {
    "recovery": ("hold", "The pipeline is on a recovery level; its restarts look like too few executors."),
    "failing": ("hold", "Storage or Kafka fails, or a batch is retried; more executors would send more requests."),
    "not_scalable": ("hold", "There are no executors to scale, as with `local[*]`, or Spark's settings forbid it."),
    "blind": ("hold", "Facts are missing or older than `max_facts_age`."),
    "too_few_batches": ("hold", "The rate is unknown: fewer than `min_batches` batches, or none in the window."),
    "excluded": ("hold", "The current minute is in `excluded`."),
    "admission_capped": ("no more", "Full batches of `max_offsets` do not suffice with any number of slots: raise it."),
    "driver_bound": ("no more", "The driver takes most of a batch's time, and records are late: use larger batches."),
    "skew": ("no more", "Slots wait for one partition: split ranges, or spread the keys."),
    "few_ranges": ("no more", "All slots for which a full batch has ranges or files are busy already."),
    "ineffective": ("no more", "The last added executors brought too little: another resource is the limit."),
    "quota": ("no more", "The cluster grants fewer than are requested, and those do not suffice. The request stays."),
    "memory_pressure": ("no fewer", "Garbage collection takes long; fewer executors would hold more each."),
    "rate_limited": (
        "note",
        "The pipeline's rate limit is below what would be needed: beyond the limit it asks for no executors.",
    ),
    "stuck_partition": ("note", "A partition makes no progress over batches: it is named, and its lag is left out."),
}

_RESULTS = """# Autoscaling: results

Written by `make reference` from a recorded run and saved scores; do not edit. What the autoscaler does and how to set
it up is in [autoscaling](AUTOSCALING.md).

"""

_WORLD = """## Simulated days

`headrace simulate` does not use the autoscaler's own model. In its world task durations vary at random (10 %),
partitions are uneven, slots slow each other down, machines are 6 % faster and slower through the day, executors take
one or two minutes to start and sometimes die, and new slots join a batch that is running. A policy sees facts as
`/status` has them, with 20 batches at most. It is still a simulation: one pipeline, no cluster, no restarts, no other
load.

- *min over SLO*: minutes in which the oldest waiting record is later than `max_delay` plus 5 min, without outages.
  *Reversals*: changes that undo the one before within 30 min. *Executor-hours* count from the request.
- *Lag threshold*: KEDA's formula through Kubernetes' HPA with its defaults; the setting is the work, in seconds of an
  executor's rate, that may wait for each executor. *Of equal cost*: the setting that costs as much as headrace, found
  by bisection (within 2 % if one exists).
- *Static of equal cost*: headrace's executor-hours, rounded up, all day. *Flink's autoscaler*: its formula and
  defaults, without the restart that each change costs there. *Spark's dynamic allocation*: its defaults.
- *tuned*: parameters or rules were changed after this day had been simulated. *untuned*: it was simulated meanwhile,
  and nothing was changed for it. *held out*: first simulated after the last change.
"""

_RUN_WORDS = """## A run on a cluster

A master, a worker with {most} cores, executors, driver, autoscaler and broker run as processes of one machine with two
cores; `tests/spark/test_autoscaling.py` runs them and records the result. Because two cores cannot carry more with
more executors, a bucketer that sleeps limits each slot to {slot:,} records a second. Minutes are scaled to seconds: an
evaluation every {tick:.0f} s, a window of {window} s, fewer executors after {down} s. The topic has {partitions}
partitions. The load stays up until nothing has been late for 40 s.
"""

_KEDA = """## With KEDA

[`docs/examples/keda.yaml`](examples/keda.yaml) has two ScaledObjects for the workers of a standalone cluster: one by
the lag of the consumer group to which a pipeline commits its offsets (`commit_offsets_to_group`), one by
`headrace_executors_desired` of an autoscaler with `--dry-run`. [Results](AUTOSCALING_RESULTS.md#simulated-days) shows
what a lag threshold does through a day. The example follows KEDA's documentation; it was not run on KEDA.
"""

_READ = """A difference of up to two minutes is noise: runs that differ only in when
executors start and die differ so much.

The lag threshold reverses itself about a hundred times a day, headrace hardly ever, with as much time over the SLO or
less at the same cost. On most days neither is ever over the SLO, and there the threshold's latest record is often
earlier (below), because it follows each batch. A threshold that costs less than headrace often stays within the SLO
too: it uses the lag that the SLO allows, and oscillates. A day that fails the aim of at most one reversal either has
load that returns every hour (headrace keeps executors for it from the third hour on, at nearly the cost of keeping all
of them all day), or has no pattern.
"""


def text() -> str:
    """Return docs/AUTOSCALING.md."""
    return "\n".join([_INTRODUCTION, *_verdicts(), *_example(), *_parameters(), _KEDA])


def results() -> str:
    """Return docs/AUTOSCALING_RESULTS.md."""
    return "\n".join([_RESULTS + _run()[0], *_run()[1:], _WORLD, *_summary(), *_scores()])


def _run() -> list[str]:
    """Show the run on a cluster that a test recorded."""
    run = json.loads(RUN.read_text(encoding="utf-8"))
    marks, settings, samples = run["marks"], run["settings"], run["samples"]
    latest = max(sample["lag_s"] or 0.0 for sample in samples)
    low, high = samples[0]["load_per_s"], max(sample["load_per_s"] for sample in samples)
    asked_s, held_s = marks["asked_s"] - marks["step_up_s"], marks["step_down_s"] - marks["step_up_s"]
    limit_s = settings["max_delay_s"] + settings["lag_slo_s"]
    late = [sample["at_s"] - marks["step_up_s"] for sample in samples if (sample["lag_s"] or 0.0) > limit_s]
    calm = f"from {min(late):.0f} s to {max(late):.0f} s after the step" if late else "never"
    return [
        _RUN_WORDS.format(
            partitions=settings["partitions"], most=settings["max_executors"], slot=settings["slot_per_s"],
            tick=settings["interval_s"], window=settings["window_s"], down=settings["down_s"],
        ),
        "| what | measured |", "| --- | --- |",
        f"| load steps up, from {low:,} to {high:,} records a second | at {marks['step_up_s']:.0f} s |",
        f"| executors are requested | {asked_s:.0f} s later; the interval is {settings['interval_s']:.0f} s |",
        f"| most executors at once | {marks['peak']} |",
        f"| oldest waiting record, maximum | {latest:.0f} s |",
        f"| later than the SLO, {limit_s:.0f} s | {calm}, which lasts {held_s:.0f} s |",
        f"| load steps down; one executor is left | {marks['down_s'] - marks['step_down_s']:.0f} s later |",
        f"| executors decommissioned; lost | {samples[-1]['gone']}; {samples[-1]['lost']} |",
        f"| tasks that failed | {run['failed_tasks']} |",
        f"| records sent, rows in the table | {run['sent']:,}, {run['rows']:,}: each offset once |", "",
        "![Load and commits, lateness, executors through the run](images/scaling.png)", "",
        "The decisions:", "",
        "```text",
        *(f"{_second(event, run):>5} s  {event['verdict']:<8} {event['why']}" for event in run["events"]),
        "```", "",
    ]  # fmt: skip


def _second(event: Mapping[str, Any], run: Mapping[str, Any]) -> str:
    began = datetime.fromisoformat(run["began"])
    return f"{max(0.0, (datetime.fromisoformat(event['at']) - began).total_seconds()):.0f}"


def _verdicts() -> list[str]:
    rows = [f"| `{kind}` | {effect} | {why} |" for kind, (effect, why) in _VERDICTS.items()]
    return ["| diagnosis | effect | meaning |", "| --- | --- | --- |", *rows, ""]


def _example() -> list[str]:
    facts = state_store.read_file(Facts, EXAMPLE)
    decision, _ = tick(DEFAULTS, Memory(), facts, facts.at)
    return [
        "## A decision, explained", "",
        "`headrace autoscaler explain --facts docs/examples/autoscale-facts.json` prints this, `--json` all.", "",
        "```text", *lines(DEFAULTS, decision, facts.at), "```", "",
    ]  # fmt: skip


def _parameters() -> list[str]:
    rows = [
        f"| `{name}` | {_shown(field)} | {_unit(field)} | {field.metadata['why']} |"
        for name, field in parameters().items()
    ]
    return [
        "## Parameters", "",
        "Set a parameter in `autoscaler.policy`, or for one command with `--set name=value`. `min_executors` and",
        "`max_executors` stand in `autoscaler` itself. `run` takes `--interval` for `interval`.", "",
        "| parameter | default | unit | what it does, and why |", "| --- | ---: | --- | --- |", *rows, "",
    ]  # fmt: skip


def _unit(field: Field[Any]) -> str:
    return "duration" if field.metadata["unit"] == "s" else str(field.metadata["unit"])


def _shown(field: Field[Any]) -> str:
    value = field.default
    if field.metadata["unit"] == "s":
        return show_duration(timedelta(seconds=value))
    return "none" if value == () else f"{value:g}" if isinstance(value, float) else str(value)


def _summary() -> list[str]:
    """Hold headrace against the lag threshold of equal cost, one line a day."""
    rows = []
    for name, day in scores().items():
        own, other = _of(day, "headrace"), _of(day, "lag threshold of equal cost")
        more = own["minutes_over_slo"] - other["minutes_over_slo"]
        calm = own["reversals"] <= 1
        rows.append(
            f"| `{name}` | {SHAPES[name]().purpose} | {own['executor_hours']:.0f} / {other['executor_hours']:.0f} | "
            f"{own['minutes_over_slo']:.1f} / {other['minutes_over_slo']:.1f} | "
            f"{own['reversals']} / {other['reversals']} | "
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
        "`headrace simulate --trace <day>` prints each table; `docs/autoscaling.py --play` makes all of them.",
        "", f"![A simulated day: load, lateness and executors of several policies](images/{PICTURE.name})", "",
    ]  # fmt: skip
    for name, day in scores().items():
        trace = SHAPES[name]()
        page += [
            f"**{name}** ({trace.purpose}): {trace.about}.", "",
            "| policy | setting | executor-hours | min over SLO | changes | reversals | latest record |",
            "| --- | --- | ---: | ---: | ---: | ---: | ---: |",
        ]  # fmt: skip
        page += [
            f"| {'**headrace**' if score['policy'] == 'headrace' else score['policy']} | {score['setting']} | "
            f"{score['executor_hours']:.1f} | {score['minutes_over_slo']:.1f} | {score['scalings']} | "
            f"{score['reversals']} | {score['late_max_s']:.0f} s |"
            for score in day["scores"]
        ]
        page.append("")
    return page


def scores() -> dict[str, Any]:
    """Return the kept scores by trace, each with its mark and the policy that played it."""
    document = json.loads(SCORES.read_text(encoding="utf-8"))
    return {name: document[name] for name in SHAPES if name in document}


def mark(trace: Trace) -> str:
    """Return what tells one trace from another, its arrivals included."""
    return hashlib.sha256(json.dumps(asdict(trace), sort_keys=True).encode()).hexdigest()[:16]


def policy() -> dict[str, Any]:
    """Return the defaults as JSON has them."""
    document: dict[str, Any] = json.loads(json.dumps(asdict(DEFAULTS)))
    return document


def _keep(trace: Trace, played: Sequence[Score]) -> None:
    rows = [{name: value for name, value in asdict(score).items() if name != "points"} for score in played]
    document = {**scores(), trace.name: {"mark": mark(trace), "policy": policy(), "scores": rows}}
    SCORES.write_text(json.dumps({name: document[name] for name in SHAPES if name in document}, indent=1) + "\n")


def _of(day: Mapping[str, Any], policy: str) -> Mapping[str, Any]:
    policy_score: Mapping[str, Any] = next(score for score in day["scores"] if score["policy"] == policy)
    return policy_score


def play(names: list[str]) -> None:
    """Play days with all policies and keep their scores."""
    for name in names or SHAPES:
        trace = shape(name)
        played = compare(trace, DEFAULTS, RIVALS)
        _keep(trace, played)
        if name == _DRAWN:
            from headrace.bench.simulation.report import draw

            shown = ("headrace", "Flink's autoscaler, defaults", "lag threshold of equal cost")
            draw(trace, [score for score in played if score.policy in shown], PICTURE)


if __name__ == "__main__":
    if sys.argv[1:2] == ["--play"]:
        play(sys.argv[2:])
    (HERE / "AUTOSCALING.md").write_text(text(), encoding="utf-8")
    (HERE / "AUTOSCALING_RESULTS.md").write_text(results(), encoding="utf-8")
