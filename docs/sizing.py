"""Writes docs/SIZING.md from the arithmetic of `headrace size` and its measured rates. `make reference`."""

import textwrap
from dataclasses import replace
from pathlib import Path

from headrace.writer.config.pipeline import Pipeline
from headrace.writer.config.sections.table import EventTime, Table
from headrace.writer.preflight.capacity.prices import PRICE_ASSUMPTIONS, read_prices
from headrace.writer.preflight.capacity.sizing import UTILISATION, Rates, Sizing, Traffic, rates, size

_INTRODUCTION = """# Sizing

Written by `make reference` from the arithmetic of `headrace size`; do not edit.

`headrace size pipelines.yaml` estimates cores, memory, files and requests for your own topic: it asks the broker how
many records came in the last hour, carries the newest 20,000 through the steps of a task into Parquet, measures what
that takes, and shows each step. This page has the same arithmetic for 200,000 events a second, without a sample: with
small events of 200 B, and with 50 TB a day, which is 2.9 KB an event. All settings are the defaults.
"""
_ORIGINS = """\
- `headrace size` takes the processor time of an event from the sample: its records go through the steps from decoding
  to Parquet, on the machine that runs the command, once and some fifty times, and the difference is divided by the
  further records. Copies compress better than new records, so Parquet costs a little less than it will. Of a route the
  eight tables with most records are measured. To this it adds what an event costs beside the steps, as
  `headrace bench` measured it: {native_event:.2f} µs and {native_byte:.2f} ns a byte to fetch it, for Spark and for
  commits; with `kafka.reader: spark` {spark_event:.2f} µs. `--rate` overrides both.
- This page has no sample. It takes the rates below, of `writer/preflight/capacity/rates.json`. Between two measured
  sizes the cost of an event is interpolated. Beyond the largest, the bytes per second of the largest apply. This is
  the cautious side, because larger events cost less for each byte.
- Row sizes are those of the bench's data sets, whose ids, addresses and positions are as distinct as in real data.
  Your data compress differently: `headrace preview --at staged` shows the size of each column.
- Cores are for {utilisation} utilisation on average. The rest carries bursts and the backlog after an outage. The
  driver needs one more core if it does not share a machine with the tasks.
- A batch has as many tasks as it fills files, at most one for each core; with `kafka.reader: spark` at least one for
  each hundred partitions that it reads. So a batch that is small in the lake uses few cores.
- A commit takes {commit_s} s besides its tasks.
- Reads and writes are those in a trace of one commit. A data file is one request below 10 MiB, else its parts and two
  more, on Azure one more; [COSTS](COSTS.md) has what was counted by format and store.
- With a [raw table](RAW.md) `headrace size` stages the sample for it as well, and counts its bytes, files and memory.
  An event costs {raw_cost} times the processor time then, as measured with 202 B, one run
  ([bench](../bench/README.md#raw-table)); with `--rate` nothing is added.
- Compaction, queries and replication are not included.
"""
_PRICES = """## Prices

headrace comes with no prices. It reckons with those of your own file, in dollars; `--json` has the same lines:

```sh
headrace size pipelines.yaml --prices docs/examples/prices.yaml
```

Such a file is, **with numbers that are invented, and of no provider:**

```text
{form}```

All three keys are required, and 0 is a price. By them the example of 200 B an event costs:
"""
_EVENTS_PER_S = 200_000
_SMALL = Traffic(
    events_per_s=_EVENTS_PER_S,
    events_how="assumed",
    event_bytes=202,
    columns=20,
    row_bytes=250,
    row_bytes_parquet=67.4,
    sampled_how="mean of 400,000 events of the bench's data set 200B",
    bucket_shares=[0.8317, 0.1291, 0.0078, 0.0076, 0.0071, 0.0071, 0.007, 0.0025],
    buckets_per_day=24,
)
_LARGE = replace(
    _SMALL,
    event_bytes=50e12 / 86_400 / _EVENTS_PER_S,  # 50 TB a day
    row_bytes=2_960,
    row_bytes_parquet=807,
    sampled_how="between 60,000 events of the data sets 1KB and 4KB",
)


def text() -> str:
    """Return the whole page."""
    settings = Pipeline(
        topics=["clicks"], table=Table(location="/lake/clicks"), event_time=EventTime.model_validate({"field": "at"})
    )
    known = rates()
    small, large = (size(traffic, settings, known) for traffic in (_SMALL, _LARGE))
    examples = [*_example("200 B an event", small), *_example("2.9 KB an event", large)]
    parts = [_INTRODUCTION, *_side_by_side(small, large), *examples, *_prices(settings, known), *_origins(known)]
    return "\n".join(parts) + "\n"


def _side_by_side(small: Sizing, large: Sizing) -> list[str]:
    lines = ["| at 200,000 events per second | 200 B | 2.9 KB |", "| --- | ---: | ---: |"]
    names = ("Kafka a day", "lake a day", "cores", "on one machine", "a commit every", "a record is readable within",
             "files a day", "a file of the largest bucket", "writes a day", "reads a day")  # fmt: skip
    for name in names:
        first, other = (next(line for line in sizing.lines if line.name == name) for sizing in (small, large))
        lines.append(f"| {name} | {first.shown} | {other.shown} |")
    return [*lines, ""]


def _example(title: str, sizing: Sizing) -> list[str]:
    lines = [f"## {title}"]
    group = ""
    for line in sizing.lines:
        if line.group != group:
            group = line.group
            lines += ["", f"**{group}**", "", "| what | value | how |", "| --- | ---: | --- |"]
        lines.append(f"| {line.name} | {line.shown} | {line.how} |")
    return [*lines, "", *(f"> {warning}\n" for warning in sizing.warnings)]


def _prices(settings: Pipeline, rate_table: Rates) -> list[str]:
    path = Path(__file__).parent / "examples" / "prices.yaml"
    priced = size(_SMALL, settings, rate_table, prices=read_prices(path))
    rows = [f"| {line.name} | {line.shown} | {line.how} |" for line in priced.lines if line.group == "Prices"]
    return [
        _PRICES.format(form=path.read_text(encoding="utf-8")),
        "| what | value | how |", "| --- | ---: | --- |", *rows, "",
        textwrap.fill(PRICE_ASSUMPTIONS, 118), "",
    ]  # fmt: skip


def _origins(rate_table: Rates) -> list[str]:
    return [
        "## Where the numbers come from\n",
        f"- {rate_table.source} Machine: {rate_table.machine}.",
        _ORIGINS.format(
            utilisation=f"{UTILISATION:.0%}",
            commit_s=rate_table.seconds_per_commit,
            raw_cost=rate_table.raw_cost,
            native_event=rate_table.beside_steps["native"].seconds_per_event * 1e6,
            native_byte=rate_table.beside_steps["native"].seconds_per_byte * 1e9,
            spark_event=rate_table.beside_steps["spark"].seconds_per_event * 1e6,
        ),
        "These rates were measured before each value was proven by itself and checked byte by byte",
        "([ADR 50](adr/0050-strict-decoding.md), [ADR 51](adr/0051-one-way-to-decode.md)). Of 200B a processor second",
        "carries 16 % fewer events since; allow as much for the others, or give your own rate with `--rate`.",
        "",
        "| data set | bytes an event | columns | events a processor second | MB a processor second |",
        "| --- | ---: | ---: | ---: | ---: |",
        *(
            f"| {m.data} | {m.bytes_per_event:,.0f} | {m.columns} | {m.events_per_cpu_second:,.0f} | "
            f"{m.events_per_cpu_second * m.bytes_per_event / 1e6:,.1f} |"
            for m in rate_table.measured
        ),
    ]


if __name__ == "__main__":
    (Path(__file__).parent / "SIZING.md").write_text(text(), encoding="utf-8")
