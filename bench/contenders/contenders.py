"""The contenders: headrace, the plain Spark jobs, and the limit. Each is a command of its own."""

import os
import sys
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import yaml
from deltalake import DeltaTable
from pyarrow import parquet

import headrace
from headrace.bench.figures import WrittenTable
from headrace.bench.job import BUCKET, Job
from headrace.writer.config.loader import load
from headrace.writer.core.errors import ConfigError
from headrace.writer.driver.spark import WORKER_ENVIRONMENT
from headrace.writer.table.factory import main_table

PIPELINE = "bench"
# These contenders are the writer itself: their commits hold the seconds of each step.
HEADRACE = "aefjk"
# These read JSON and Protobuf, too.
READERS_OF_ALL = HEADRACE
# These read Avro by the schema that each record names.
READERS_OF_VERSIONS = f"{HEADRACE}d"
# The events are of a fixed day, so no age is too great.
_EVER = "36500 d"


@dataclass(frozen=True)
class Contender:
    """One way to carry the topic: the command that does it, and how its table is read afterwards."""

    letter: str
    name: str
    about: str
    command: Callable[[Job], list[str]]
    count_rows: Callable[[Job], WrittenTable]
    env: Mapping[str, str] = field(default_factory=dict)
    # It runs no tasks side by side, however many slots the bench gives.
    has_one_slot: bool = False


def parse_contenders(letters: str) -> list[Contender]:
    """Read `a,b,d`. Raises ConfigError for a letter that is none, or stands twice."""
    names = [letter.strip() for letter in letters.split(",") if letter.strip()]
    unknown = sorted(set(names) - set(CONTENDERS))
    if unknown or not names or len(set(names)) < len(names):
        choices = ", ".join(f"{c.letter} ({c.name})" for c in CONTENDERS.values())
        raise ConfigError(f"contenders {letters!r} cannot be: name each once, of {choices}")
    return [CONTENDERS[letter] for letter in names]


def environment(job: Job) -> Mapping[str, str]:
    """Return what a contender's environment has besides ours: this very code, and a scratch directory of its own."""
    path = [str(Path(headrace.__file__).parents[1]), *filter(None, [os.environ.get("PYTHONPATH")])]
    env = {
        "PYTHONPATH": os.pathsep.join(path),
        "TMPDIR": str(job.scratch),
        "SPARK_LOCAL_DIRS": str(job.scratch),
        "SPARK_SUBMIT_OPTS": f'"-Djava.io.tmpdir={job.scratch}" -XX:-UsePerfData',
        "PYSPARK_PYTHON": sys.executable,
        # Spark sets the same in its Python workers.
        "OMP_NUM_THREADS": "1",
    }
    for name in ("HEADRACE_CACHE", "HEADRACE_JARS", "HEADRACE_IVY_SETTINGS", "JAVA_HOME"):
        if given := os.environ.get(name):
            # The contender runs in another directory, so the path has to be absolute.
            env[name] = str(Path(given).absolute())
    return env


def configuration(job: Job, **kafka: str) -> str:
    """Return the writer's configuration: defaults, but for seals, the size of a commit and events of a fixed day.

    `kafka`: more of its section.
    """
    registry: dict[str, Any] = {"registry": {"url": job.registry_url}}
    values: dict[str, Any] = {}
    if job.declared is not None:
        registry = {}
        values = {"formats": ["json"], "columns": {"declared": dict(job.declared)}}
    if job.form == "protobuf":
        values = {"formats": ["protobuf"]}
    return yaml.safe_dump(
        {
            "kafka": {"bootstrap_servers": job.bootstrap, **kafka},
            **registry,
            "checkpoints": f"{job.directory}/checkpoints",
            "spark": {"master": f"local[{job.slots}]"},
            # Another writer may run on this machine.
            "http": {"port": 0},
            "pipelines": {
                PIPELINE: {
                    "topics": [job.topic],
                    **values,
                    "table": {"location": str(job.table)},
                    "event_time": {"field": job.time_field, "max_age": _EVER, "max_ahead": _EVER},
                    "bucket": {"type": "event_time", "width": "1 h"},
                    "commit": {"max_offsets": job.batch_events},
                    "roll": {"target_file_size": "128 MiB"},
                    # No other contender tells when a bucket is complete.
                    "seal": {"enabled": False},
                }
            },
        },
        sort_keys=False,
    )


def steps_of(job: Job) -> list[Mapping[str, float]]:
    """Return the processor seconds that headrace spent in each step, commit by commit."""
    table = main_table(PIPELINE, load(_file(job)))
    return [committed.facts["seconds"] for committed in table.commits_since(-1)]


def _file(job: Job) -> Path:
    return Path(job.directory) / "headrace.yaml"


def _headrace(*, is_iceberg: bool = False, raw: bool = False, **kafka: str) -> Callable[[Job], list[str]]:
    def command(job: Job) -> list[str]:
        settings = yaml.safe_load(configuration(job, **kafka))
        if is_iceberg:
            settings["catalog"] = {"type": "sql", "uri": f"sqlite:///{job.directory}/catalog.db"}
            settings["pipelines"][PIPELINE]["table"]["format"] = "iceberg"
        if raw:
            settings["pipelines"][PIPELINE]["table"]["raw"] = f"{job.directory}/raw"
        _file(job).write_text(yaml.safe_dump(settings, sort_keys=False), encoding="utf-8")
        return [sys.executable, "-m", "headrace.writer.cli", "run", str(_file(job)), "--once"]

    return command


def _module(name: str, *flags: str) -> Callable[[Job], list[str]]:
    return lambda job: [sys.executable, "-m", name, str(job.save()), *flags]


def _in_delta(job: Job) -> WrittenTable:
    """Count what the table's newest version names; the rows are counted in the files."""
    table = DeltaTable(str(job.table))
    sizes = table.get_add_actions(flatten=True).column("size_bytes").to_pylist()
    return WrittenTable(len(sizes), sum(sizes), table.to_pyarrow_dataset().count_rows())


def _in_iceberg(job: Job) -> WrittenTable:
    """Count what the table's current snapshot names; the rows are counted in the files."""
    from pyiceberg.catalog import load_catalog

    catalog_table = load(_file(job)).catalog_place(PIPELINE, str(job.table))
    assert catalog_table is not None, "the configuration has a catalog"
    files = (
        load_catalog(catalog_table.catalog, **dict(catalog_table.settings))
        .load_table(catalog_table.identifier)
        .inspect.files()
    )
    sizes = files.column("file_size_in_bytes").to_pylist()
    paths = files.column("file_path").to_pylist()
    rows = sum(parquet.read_metadata(path.removeprefix("file://")).num_rows for path in paths)
    return WrittenTable(len(sizes), sum(sizes), rows)


def _in_files(job: Job) -> WrittenTable:
    """Count all Parquet files."""
    files = sorted(job.table.glob(f"{BUCKET}=*/*.parquet"))
    rows = sum(parquet.read_metadata(file).num_rows for file in files)
    return WrittenTable(len(files), sum(file.stat().st_size for file in files), rows)


CONTENDERS = {
    contender.letter: contender
    for contender in (
        Contender("a", "headrace", "headrace run --once, as it is", _headrace(), _in_delta),
        Contender(
            "b",
            "plain",
            "PySpark as one writes it first: from_avro, Delta, partitionBy(hour)",
            _module("headrace.bench.contenders.plain"),
            _in_delta,
        ),
        Contender(
            "c",
            "repartitioned",
            "the same with repartition(hour) before the write",
            _module("headrace.bench.contenders.plain", "--repartition"),
            _in_delta,
        ),
        Contender(
            "d",
            "limit",
            "headrace's steps in one process without Spark and without commits",
            _module("headrace.bench.contenders.limit"),
            _in_files,
            WORKER_ENVIRONMENT,
            has_one_slot=True,
        ),
        Contender(
            "e",
            "waiting",
            "headrace with kafka.reader: spark and Kafka's default of kafka.fetch_max_wait, 500 ms",
            _headrace(reader="spark", fetch_max_wait="500 ms"),
            _in_delta,
        ),
        Contender("f", "spark", "headrace with kafka.reader: spark", _headrace(reader="spark"), _in_delta),
        Contender(
            "g",
            "flink",
            "Flink's FileSink: Parquet in hourly folders, checkpoints every 10 s",
            _module("headrace.bench.contenders.flink"),
            _in_files,
        ),
        Contender(
            "h",
            "flink-tuned",
            "the same with object reuse, and zstd at level 1 as all others",
            _module("headrace.bench.contenders.flink", "--tuned"),
            _in_files,
        ),
        Contender(
            "i",
            "script",
            "confluent_kafka, fastavro and deltalake in one process",
            _module("headrace.bench.contenders.script"),
            _in_delta,
            has_one_slot=True,
        ),
        Contender(
            "j",
            "iceberg",
            "headrace with table.format: iceberg, an SQLite catalog",
            _headrace(is_iceberg=True),
            _in_iceberg,
        ),
        Contender("k", "raw", "headrace with a raw table", _headrace(raw=True), _in_delta),
    )
}
