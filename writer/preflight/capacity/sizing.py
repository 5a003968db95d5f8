"""Estimates cores, memory, files and requests from traffic and settings, one line for each step. Pure."""

import json
import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import timedelta
from importlib.resources import files

from headrace.writer.batch.schema_blocks import ROUTE_HELD_BYTES_MAX
from headrace.writer.batch.staging.parquet_files import GROUP_BYTES_MAX
from headrace.writer.commit.batch_limits import limits, task_count
from headrace.writer.config.pipeline import Pipeline
from headrace.writer.core.text import join_first, plural, span
from headrace.writer.core.units import show_duration, show_size
from headrace.writer.preflight.capacity.prices import PRICED, Prices, price_steps
from headrace.writer.storage.locations import in_bucket
from headrace.writer.storage.requests.counts import PART_BYTES, upload_requests

# The mean share of the cores. The rest is for bursts, and for catching up after an outage.
UTILISATION = 0.6
CORES_PER_EXECUTOR = 4
# The bench runs two tasks in a heap of 1 GiB.
_HEAP_PER_TASK = 512 * 2**20
# An interpreter with Arrow and DataFusion takes 180 MiB.
_PYTHON_BYTES = 200 * 2**20
# The driver's own Python, beside its JVM: `headrace bench --slots 1` has 287 MiB of it.
_DRIVER_BYTES = 300 * 2**20
# At most this is put into one Arrow batch.
_ARROW_BYTES = 64 * 2**20
# A batch is in memory as values, as a framed block, and as rows.
_ARROW_COPIES = 3
# Spark's own memory in an executor is a tenth of the heap, or this.
_OVERHEAD_MIN = 384 * 2**20
_DAY_S = 86_400
_MB = 10**6
# A sum shows as many of its parts.
_PARTS_SHOWN = 4
# A file below this share of the target size is called small.
_SMALL = 0.25
# Requests of one commit beside its data files. Writes: the log's entry, Spark's offsets and commits. Reads, counted in
# a trace: 11 looks whether the log has grown, 8 reads of entries, and 2 as the commit's share of a checkpoint.
_WRITES_PER_COMMIT = 3
_READS_PER_COMMIT = 21
# What the other formats send beside that, as headrace.bench.features.store_requests counts it: manifests and the like.
_FURTHER_WRITES = {"delta": 0, "parquet": 1, "iceberg": 6}
_FURTHER_READS = {"delta": 0, "parquet": 0, "iceberg": 9}
# The same on stores other than S3, where Iceberg's client of files looks less often.
_FURTHER_WRITES_CLOUDS = {**_FURTHER_WRITES, "iceberg": 5}
_FURTHER_READS_CLOUDS = {**_FURTHER_READS, "iceberg": 8}


@dataclass(frozen=True)
class MeasuredCost:
    """What one processor second carries of events of one size."""

    data: str
    bytes_per_event: float
    columns: int
    events_per_cpu_second: float


@dataclass(frozen=True)
class CostBesideSteps:
    """What an event costs beside the steps from decoding to Parquet: to fetch it, and for Spark and commits."""

    seconds_per_event: float
    seconds_per_byte: float


@dataclass(frozen=True)
class Rates:
    """Measured rates, from `rates.json`, and where they were measured."""

    source: str
    machine: str
    seconds_per_commit: float
    measured: Sequence[MeasuredCost]
    # The cost of an event with a raw table, divided by the cost without one.
    raw_cost: float = 1.0
    # What an event costs beside the steps of a task, by `kafka.reader`.
    beside_steps: Mapping[str, CostBesideSteps] = field(default_factory=dict)


@dataclass(frozen=True)
class StepCost:
    """Processor seconds of the steps from decoding to Parquet, for one event, and by how many it was measured."""

    seconds: float
    records: int


@dataclass(frozen=True)
class Traffic:
    """What a pipeline has to carry. `bucket_shares`: of the rows, for each bucket that a batch hits."""

    events_per_s: float
    events_how: str
    event_bytes: float
    columns: int
    # In memory.
    row_bytes: float
    row_bytes_parquet: float
    sampled_how: str
    bucket_shares: Sequence[float]
    # None: the buckets are the same every day.
    buckets_per_day: float | None
    # The partitions of all topics, if Spark's source reads them.
    partitions_for_spark: int = 0
    # The size of a record in the raw table, as Parquet; 0: there is no raw table.
    raw_bytes: float = 0.0
    # What the steps cost for an event of the sample, on this machine; None: there is no sample.
    steps: StepCost | None = None
    reader: str = "native"


@dataclass(frozen=True)
class Line:
    """One step of the arithmetic."""

    group: str
    name: str
    value: float
    unit: str
    how: str

    @property
    def shown(self) -> str:
        """Write the value as a person reads it."""
        match self.unit:
            case "bytes":
                return show_size(self.value)
            case "bytes/s" | "bytes/day":
                return f"{_decimal(self.value)}/{self.unit.removeprefix('bytes/')}"
            case "GiB/day":
                return f"{_digits(self.value)} GiB/day"
            case "s":
                return span(self.value)
            case "cores":
                return f"{_digits(self.value)} {'core' if self.value == 1 else 'cores'}"
            case "B":
                return f"{self.value:,.1f} B"
            case "dollars":
                return f"${self.value:,.2f}" if self.value >= 1 else f"${self.value:.4f}"
        return _digits(self.value)


# The name, value, unit and derivation of a line.
_Step = tuple[str, float, str, str]


@dataclass(frozen=True)
class Sizing:
    """The arithmetic of one pipeline, or of a table, and what a person should know about its result."""

    lines: Sequence[Line]
    warnings: Sequence[str]
    # Of a route, by target: the lines that differ between tables.
    tables: Mapping[str, "Sizing"] = field(default_factory=dict)

    def line(self, name: str) -> Line:
        """Return the line of a name."""
        return next(line for line in self.lines if line.name == name)

    def value(self, name: str) -> float:
        """Return the value of a line."""
        return self.line(name).value


@dataclass(frozen=True)
class SteadyBatch:
    """The micro-batch that a pipeline settles at."""

    records: float
    every_s: float
    tasks: int
    busy_s: float
    why: str


def rates() -> Rates:
    """Read the measured rates that come with the package."""
    document = json.loads((files("headrace.writer.preflight.capacity") / "rates.json").read_text(encoding="utf-8"))
    measured = [MeasuredCost(**cost) for cost in document.pop("measured")]
    beside_steps = {reader: CostBesideSteps(**cost) for reader, cost in document.pop("beside_steps").items()}
    return Rates(**document, measured=measured, beside_steps=beside_steps)


def rate(measured_rates: Rates, event_bytes: float, columns: int) -> tuple[float, str]:
    """Return the events of this size that one processor second carries, and where the figure comes from.

    Between two measured sizes the cost of an event is interpolated. Beyond the largest, the bytes per second are taken
    as they are there; below the smallest, the events. Of the data sets, those with the nearest number of columns count.
    """
    nearest = min((abs(math.log(max(columns, 1) / m.columns)), m.columns) for m in measured_rates.measured)[1]
    sizes = sorted((m for m in measured_rates.measured if m.columns == nearest), key=lambda m: m.bytes_per_event)
    below = [m for m in sizes if m.bytes_per_event <= event_bytes]
    above = [m for m in sizes if m.bytes_per_event > event_bytes]
    if not below:
        return above[0].events_per_cpu_second, f"as measured with {above[0].bytes_per_event:,.0f} B ({above[0].data})"
    low = below[-1]
    if not above:
        megabytes = low.events_per_cpu_second * low.bytes_per_event / _MB
        how = (
            f"{megabytes:,.1f} MB/s, as measured with {low.bytes_per_event:,.0f} B ({low.data}), ÷ {event_bytes:,.0f} B"
        )
        return low.events_per_cpu_second * low.bytes_per_event / event_bytes, how
    high = above[0]
    part = (event_bytes - low.bytes_per_event) / (high.bytes_per_event - low.bytes_per_event)
    cost = (1 - part) / low.events_per_cpu_second + part / high.events_per_cpu_second
    between = f"{low.bytes_per_event:,.0f} B ({low.data}) and {high.bytes_per_event:,.0f} B ({high.data})"
    return 1 / cost, f"between what was measured with {between}"


def rate_of(traffic: Traffic, measured_rates: Rates) -> tuple[float, str]:
    """Return the events that one processor second carries, and where the figure comes from.

    The sample decides, as it was measured on this machine; without one, what the bench measured elsewhere.
    """
    if traffic.steps is None:
        return rate(measured_rates, traffic.event_bytes, traffic.columns)
    beside = measured_rates.beside_steps[traffic.reader]
    beside_s = beside.seconds_per_event + beside.seconds_per_byte * traffic.event_bytes
    how = (
        f"1 s ÷ ({_microseconds(traffic.steps.seconds)} of the sample's steps here, by {traffic.steps.records:,} "
        f"records, + {_microseconds(beside_s)} to fetch and for Spark, by the bench)"
    )
    return 1 / (traffic.steps.seconds + beside_s), how


def _microseconds(seconds: float) -> str:
    return f"{seconds * 1e6:.2f} µs"


def size(
    traffic: Traffic,
    settings: Pipeline,
    measured_rates: Rates,
    events_per_core: float | None = None,
    tables: Mapping[str, tuple[Traffic, Pipeline]] | None = None,
    prices: Prices | None = None,
) -> Sizing:
    """Work out what the traffic needs. `events_per_core`: a second, instead of the measured ones.

    `prices`: of a store; None: nothing is priced.

    `tables`: of a route, by target. They share the pipeline's processors and commits; rows and files are their own.
    """
    per_core, per_core_how = rate_of(traffic, measured_rates)
    if events_per_core is not None:
        per_core = events_per_core
        per_core_how = "given by --rate"
    elif traffic.raw_bytes:
        per_core /= measured_rates.raw_cost
        per_core_how += f", ÷ {measured_rates.raw_cost} for the raw table"
    busy = traffic.events_per_s / per_core
    cores = max(1, math.ceil(busy / UTILISATION))
    batch = steady_batch(traffic, settings, per_core, cores, measured_rates.seconds_per_commit)
    groups = {
        "Traffic": _traffic(traffic),
        "Processors": _processors(traffic, per_core, per_core_how, busy, cores),
        "Commits": _commits(traffic, settings, batch, per_core, cores),
        "Files": _files(traffic, settings, batch),
        "Memory": _memory(traffic, settings, batch, cores),
        "Storage": _requests(traffic, settings, batch, len(tables or {})),
    }
    lines = [Line(group, *step) for group, steps in groups.items() for step in steps]
    if prices is not None:
        whole = Sizing(lines, [])
        bytes_a_day = whole.value("lake a day") * 2**30
        steps = price_steps(whole.value("writes a day"), whole.value("reads a day"), bytes_a_day, prices)
        lines += [Line("Prices", *step) for step in steps]
    table_sizings = {
        name: _size_table(table_traffic, table_settings, batch, traffic.events_per_s)
        for name, (table_traffic, table_settings) in (tables or {}).items()
    }
    return Sizing(lines, list(_warnings(traffic, settings, per_core, cores, Sizing(lines, []))), table_sizings)


def add_up(sizings: Sequence[Sizing]) -> list[Line]:
    """Add up pipelines that share an application: cores are rounded up once, and a core serves any of them."""

    def total(name: str) -> Line:
        lines = [sizing.line(name) for sizing in sizings]
        shown = join_first([line.shown for line in lines], _PARTS_SHOWN, " + ")
        return Line("", name, sum(line.value for line in lines), lines[0].unit, shown)

    busy = total("busy")
    cores = max(1, math.ceil(busy.value / UTILISATION))
    core_bytes = max((sizing.value("on one machine") - _DRIVER_BYTES) / sizing.value("cores") for sizing in sizings)
    machine_bytes = cores * core_bytes + _DRIVER_BYTES
    how = f"{plural(cores, 'core')} x {show_size(core_bytes)} + {show_size(_DRIVER_BYTES)} of the driver's Python"
    return [
        busy,
        Line("", "cores", cores, "cores", f"{busy.value:,.2f} ÷ {UTILISATION}, rounded up"),
        Line("", "on one machine", machine_bytes, "bytes", how),
        *map(total, ("lake a day", "files a day", "commits a day", "writes a day", "reads a day")),
        *map(total, (name for name in PRICED if any(line.name == name for line in sizings[0].lines))),
    ]


def _size_table(traffic: Traffic, settings: Pipeline, batch: SteadyBatch, events_per_s: float) -> Sizing:
    """Work out one table's part of the pipeline's batch. `events_per_s`: of the pipeline."""
    table_batch = replace(batch, records=batch.records * traffic.events_per_s / events_per_s)
    groups = {"Traffic": _traffic(traffic), "Files": _files(traffic, settings, table_batch)}
    return Sizing([Line(group, *step) for group, steps in groups.items() for step in steps], [])


def steady_batch(traffic: Traffic, settings: Pipeline, per_core: float, cores: int, commit_s: float) -> SteadyBatch:
    """Find the micro-batch that repeats: it begins when enough waits, or the delay is over, or the last one is done."""
    target = settings.roll.target_file_size
    parquet = traffic.row_bytes_parquet
    ends = limits(settings.commit, target, parquet, once=False)
    delay_s = _delay_s(settings)
    per_s = traffic.events_per_s
    if per_s * delay_s <= (ends.offsets_min or 1):
        records = per_s * delay_s
        why = f"commit.max_delay, before {ends.offsets_min:,} wait ({ends.offsets_min_from})"
    else:
        records = float(ends.offsets_min or 1)
        why = f"{ends.offsets_min_from}: enough waits before commit.max_delay"

    def tasks_and_duration(records: float) -> tuple[int, float]:
        tasks = task_count(records * parquet, target, cores, partitions=traffic.partitions_for_spark)
        return tasks, commit_s + records / (min(tasks, cores) * per_core)

    tasks, busy_s = tasks_and_duration(records)
    if busy_s > records / per_s:
        why = "fewer would take longer than they need to come"
    while busy_s > records / per_s and records < ends.offsets_max:
        records = min(records * 1.01, ends.offsets_max)
        tasks, busy_s = tasks_and_duration(records)
    return SteadyBatch(records, max(records / per_s, busy_s), tasks, busy_s, why)


def _traffic(traffic: Traffic) -> Iterator[_Step]:
    per_s = traffic.events_per_s
    event = traffic.event_bytes
    parquet = traffic.row_bytes_parquet
    yield ("events per second", per_s, "", traffic.events_how)
    yield ("an event in Kafka", event, "B", f"{traffic.sampled_how}, {plural(traffic.columns, 'column')}")
    yield ("Kafka to read", per_s * event, "bytes/s", f"{per_s:,.0f} x {event:,.1f} B")
    yield ("Kafka a day", per_s * event * _DAY_S, "bytes/day", f"x {_DAY_S:,} s")
    yield ("a row in the lake", parquet, "B", f"{traffic.sampled_how}, staged as Parquet")
    event_bytes = f"{parquet:,.1f} B"
    remark = f"{event / parquet:.1f} times less than Kafka's values"
    if raw := traffic.raw_bytes:
        yield ("a record in the raw table", raw, "B", f"{traffic.sampled_how}, staged as Parquet")
        yield ("raw table a day", per_s * raw * _DAY_S / 2**30, "GiB/day", f"{per_s:,.0f} x {raw:,.1f} B a second")
        event_bytes = f"({event_bytes} + {raw:,.1f} B)"
        remark = "table and raw table"
    how = f"{per_s:,.0f} x {event_bytes} x {_DAY_S:,} s; {remark}"
    yield ("lake a day", per_s * (parquet + raw) * _DAY_S / 2**30, "GiB/day", how)


def _processors(traffic: Traffic, per_core: float, how: str, busy: float, cores: int) -> Iterator[_Step]:
    yield ("events a processor second", per_core, "", how)
    yield ("busy", busy, "cores", f"{traffic.events_per_s:,.0f} ÷ {per_core:,.0f}")
    yield ("cores", cores, "cores", f"{busy:,.2f} ÷ {UTILISATION}, rounded up: the rest is for bursts and catching up")


def _commits(traffic: Traffic, settings: Pipeline, batch: SteadyBatch, per_core: float, cores: int) -> Iterator[_Step]:
    yield ("records in a commit", batch.records, "", batch.why)
    yield ("a commit every", batch.every_s, "s", f"{batch.records:,.0f} ÷ {traffic.events_per_s:,.0f}")
    yield ("commits a day", _DAY_S / batch.every_s, "", f"{_DAY_S:,} s ÷ {batch.every_s:,.1f} s")
    how = f"it waits {span(batch.every_s)} and is carried for {span(batch.busy_s)} by {plural(batch.tasks, 'task')}"
    yield ("a record is readable within", batch.every_s + batch.busy_s, "s", how)
    offsets_max = settings.commit.max_offsets
    per_s = traffic.events_per_s
    row_bytes = traffic.row_bytes_parquet
    target = settings.roll.target_file_size
    tasks = min(cores, task_count(offsets_max * row_bytes, target, cores, partitions=traffic.partitions_for_spark))
    spare = tasks * per_core - per_s
    if spare > 0:
        how = f"{3600 * per_s:,.0f} ÷ ({plural(tasks, 'task')} x {per_core:,.0f} - {per_s:,.0f})"
        yield ("an hour's outage is caught up in", 3600 * per_s / spare, "s", how)


def _files(traffic: Traffic, settings: Pipeline, batch: SteadyBatch) -> Iterator[_Step]:
    target = settings.roll.target_file_size
    parquet = traffic.row_bytes_parquet
    bucket_rows = [batch.records * share for share in traffic.bucket_shares]
    bucket_files = _bucket_files(traffic, settings, batch)
    per_commit = sum(bucket_files)
    commits = _DAY_S / batch.every_s
    how = f"{plural(batch.tasks, 'task')} x {plural(len(bucket_rows), 'bucket')} in the sample"
    if per_commit > batch.tasks * len(bucket_rows):
        how += f", and more where one fills several of {show_size(target)}"
    yield ("files in a commit", per_commit, "", how)
    small = [
        (files, rows)
        for files, rows in zip(bucket_files, bucket_rows, strict=True)
        if rows * parquet / files < _SMALL * target
    ]
    share = sum(rows for _, rows in small) / batch.records
    how = f"under {show_size(_SMALL * target)} ({_SMALL:.0%} of roll.target_file_size); {share:.1%} of the rows"
    yield ("small ones of them", sum(files for files, _ in small), "", how)
    how = f"{bucket_rows[0]:,.0f} rows x {parquet:,.1f} B ÷ {plural(bucket_files[0], 'file')}"
    yield ("a file of the largest bucket", bucket_rows[0] * parquet / bucket_files[0], "bytes", how)
    raw = 0
    how = f"{per_commit:,}"
    if traffic.raw_bytes:
        raw = _raw_files(traffic, settings, batch)
        how = f"({per_commit:,} + {raw:,})"
        yield ("raw files in a commit", raw, "", f"{plural(batch.tasks, 'task')}, one day of Kafka's timestamps")
    yield ("files a day", (per_commit + raw) * commits, "", f"{how} x {commits:,.0f} commits")
    buckets = traffic.buckets_per_day
    if buckets:
        how = f"÷ {buckets:,.0f} buckets a day"
    else:
        how = f"a day: ÷ {plural(len(bucket_rows), 'bucket')}, the same every day"
    if raw:
        how += ", without the raw table"
    yield ("files in a bucket", per_commit * commits / (buckets or len(bucket_rows)), "", how)


def _bucket_files(traffic: Traffic, settings: Pipeline, batch: SteadyBatch) -> list[int]:
    """Return the files of a commit in each bucket that it hits."""
    target = settings.roll.target_file_size
    bucket_rows = [batch.records * share for share in traffic.bucket_shares]
    return [
        max(min(batch.tasks, math.ceil(rows)), math.ceil(rows * traffic.row_bytes_parquet / target))
        for rows in bucket_rows
    ]


def _raw_files(traffic: Traffic, settings: Pipeline, batch: SteadyBatch) -> int:
    """Return the files of a commit in the raw table."""
    if not traffic.raw_bytes:
        return 0
    return max(batch.tasks, math.ceil(batch.records * traffic.raw_bytes / settings.roll.target_file_size))


def _uploads(traffic: Traffic, settings: Pipeline, batch: SteadyBatch) -> int:
    """Return the requests that write the data files of a commit."""
    files = [
        (count, batch.records * share * traffic.row_bytes_parquet / count)
        for share, count in zip(traffic.bucket_shares, _bucket_files(traffic, settings, batch), strict=True)
    ]
    raw = _raw_files(traffic, settings, batch)
    if raw:
        files.append((raw, batch.records * traffic.raw_bytes / raw))
    store = _priced_store(settings)
    requests = sum(count * sum(upload_requests(store, int(size)).values()) for count, size in files)
    # What readers of folders are to see is copied there at the commit.
    copies = sum(count for count, _ in files) if settings.table.format == "parquet" else 0
    return requests + copies


def _priced_store(settings: Pipeline) -> str:
    """Return the scheme of the store whose requests are reckoned: the table's; S3 for a path."""
    location = settings.table.location
    return location.partition("://")[0] if in_bucket(location) else "s3"


def _memory(traffic: Traffic, settings: Pipeline, batch: SteadyBatch, cores: int) -> Iterator[_Step]:
    arrow = min(settings.arrow_batch_records * traffic.event_bytes, _ARROW_BYTES) * _ARROW_COPIES
    parts = {"budget": settings.memory.buffer, "row group": GROUP_BYTES_MAX, "Arrow batches": arrow}
    if settings.route is not None:
        parts["records that wait for others of their schema"] = ROUTE_HELD_BYTES_MAX
    if traffic.raw_bytes:
        parts["raw table"] = settings.memory.buffer // 4
    parts["libraries"] = _PYTHON_BYTES
    task = sum(parts.values())
    heap = _HEAP_PER_TASK
    yield ("a task's Python", task, "bytes", " + ".join(f"{show_size(n)} {part}" for part, n in parts.items()))
    how = f"{plural(cores, 'core')} x ({show_size(task)} + {show_size(heap)} of heap) + "
    how += f"{show_size(_DRIVER_BYTES)} of the driver's Python; spark.master local[{cores}, 4]"
    yield ("on one machine", cores * (task + heap) + _DRIVER_BYTES, "bytes", how)
    executor_cores = min(CORES_PER_EXECUTOR, cores)
    spare = max(_OVERHEAD_MIN, executor_cores * heap / 10)
    how = f"{plural(cores, 'core')} ÷ spark.executor.cores={executor_cores}"
    yield ("or as executors", math.ceil(cores / executor_cores), "", how)
    how = f"{executor_cores} x {show_size(heap)}: spark.executor.memory"
    yield ("an executor's heap", executor_cores * heap, "bytes", how)
    how = f"{executor_cores} x {show_size(task)} + {show_size(spare)} of Spark's own: spark.executor.memoryOverhead"
    yield ("an executor's overhead", executor_cores * task + spare, "bytes", how)
    rows = batch.records / batch.tasks
    over = max(0.0, rows * traffic.row_bytes - settings.memory.buffer)
    how = f"{rows:,.0f} rows x {traffic.row_bytes:,.0f} B in memory = {show_size(rows * traffic.row_bytes)}, "
    how += "less the budget" if over else "within the budget"
    yield ("spilled by a task", over, "bytes", how)


def _requests(traffic: Traffic, settings: Pipeline, batch: SteadyBatch, tables: int) -> Iterator[_Step]:
    """`tables`: of a route; each has a log of its own, which gets an entry for each commit."""
    commits = _DAY_S / batch.every_s
    interval = settings.table.checkpoint_interval
    table_format = settings.table.format
    uploads = _uploads(traffic, settings, batch) * commits
    checkpoints = 2 * commits / interval * (1 + tables)
    store = _priced_store(settings)
    further_writes = _FURTHER_WRITES if store == "s3" else _FURTHER_WRITES_CLOUDS
    further_reads = _FURTHER_READS if store == "s3" else _FURTHER_READS_CLOUDS
    of_log = 1 + further_writes[table_format]
    per_commit = _WRITES_PER_COMMIT - 1 + of_log
    # Azure's uploads have no request to begin with.
    beside_parts = sum(upload_requests(store, PART_BYTES).values()) - 1
    how = f"{uploads:,.0f} for files (one below {show_size(PART_BYTES)}, else its parts and {beside_parts}"
    how += ", and a copy)" if table_format == "parquet" else ")"
    how += f" + {commits:,.0f} commits x {per_commit} (log, Spark's offsets and commits)"
    if tables:
        how += f" + {plural(tables, 'table')} x {commits * of_log:,.0f} for their logs"
        how += f" + {checkpoints:,.0f} for checkpoints of the logs"
    else:
        how += f" + {checkpoints:,.0f} for checkpoints of the log"
    yield ("writes a day", uploads + commits * (per_commit + tables * of_log) + checkpoints, "", how)
    reads = _READS_PER_COMMIT + further_reads[table_format]
    yield ("reads a day", commits * reads, "", f"{commits:,.0f} commits x {reads} (the log: has it grown, and by what)")


def _warnings(traffic: Traffic, settings: Pipeline, per_core: float, cores: int, sizing: Sizing) -> Iterator[str]:
    target = settings.roll.target_file_size
    parquet = traffic.row_bytes_parquet
    offsets_max = settings.commit.max_offsets
    tasks = task_count(offsets_max * parquet, target, cores, partitions=traffic.partitions_for_spark)
    if tasks < cores:
        rate = f"{tasks * per_core:,.0f} events per second"
        if tasks * per_core < traffic.events_per_s:
            rate += ", less than come"
        yield (
            f"A batch has at most {offsets_max:,} offsets (commit.max_offsets), {show_size(offsets_max * parquet)} of "
            f"Parquet: {plural(tasks, 'task')}, which carry {rate}. To use {cores} cores in a backlog, set "
            f"commit.max_offsets to {_round_up(cores * target / parquet):,} or more, or lower roll.target_file_size."
        )
    small = sizing.value("small ones of them")
    files = sizing.value("files in a commit")
    if 2 * small <= files:
        return
    message = f"{small:,.0f} of {files:,.0f} files in a commit are small, and every query opens them."
    delay_s = _delay_s(settings)
    if sizing.value("a commit every") >= delay_s:
        delay = show_duration(timedelta(seconds=delay_s))
        yield f"{message} A longer commit.max_delay ({delay}) makes fewer and larger ones; so do wider buckets."
    else:
        yield (
            f"{message} Each task writes a file to each bucket that its records hit, late ones too. Wider buckets make "
            "fewer; so does compaction (OPTIMIZE), which the table takes from any Delta client."
        )


def _delay_s(settings: Pipeline) -> float:
    return settings.commit.max_delay.total_seconds()


def _digits(number: float) -> str:
    """Write a number with one decimal below 100, two below 1, none if it is whole."""
    if number >= 100 or number == 0:  # noqa: PLR2004 - three digits
        return f"{number:,.0f}"
    if number >= 1:
        return f"{number:.1f}".removesuffix(".0")
    return f"{number:.2f}" if number >= 0.01 else "under 0.01"  # noqa: PLR2004


def _decimal(size: float) -> str:
    """Write a byte count in a decimal unit, as networks and bills do."""
    for unit in ("B", "kB", "MB", "GB"):
        if size < 1_000:  # noqa: PLR2004 - the step of the units
            return f"{_digits(size)} {unit}"
        size /= 1_000
    return f"{_digits(size)} TB"


def _round_up(number: float) -> int:
    """Round up to two digits."""
    step = 10 ** max(0, math.floor(math.log10(number)) - 1)
    return int(math.ceil(number / step) * step)
