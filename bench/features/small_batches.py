"""Measures what a batch of a few records costs, and what a driver costs whose pipelines get no records.

    python -m headrace.bench.features.small_batches floor --batches 200  # Spark alone: the same source, trivial tasks
    python -m headrace.bench.features.small_batches batches --pipelines 1 --batches 200 --records 20
    python -m headrace.bench.features.small_batches idle --pipelines 40 --seconds 60

Each prints a line of JSON: processor seconds by part. What is measured is in bench/README.md.
"""

import argparse
import json
import os
import sys
import tempfile
import time
from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping
from contextlib import suppress
from datetime import timedelta
from pathlib import Path
from typing import Any, Self

import psutil
import yaml

from headrace.bench.contenders.contenders import environment
from headrace.bench.contenders.race import ContenderProcess
from headrace.bench.data.dataset import TIME_FIELD, dataset
from headrace.bench.features.fleet import Fleet, config, fill
from headrace.bench.figures import BenchFailed
from headrace.bench.job import Job
from headrace.writer.clients import java_artifacts
from headrace.writer.config.loader import load
from headrace.writer.core.errors import HeadraceError
from headrace.writer.demo.devstack.stack import Stack
from headrace.writer.demo.devstack.workspace import ProcessGroup
from headrace.writer.driver import spark
from headrace.writer.driver.child_processes import DAEMON_MODULE

# Of the batches, so many pay for starting, compiling and first calls.
_WARM_FROM = 0.4
_POLL_S = 0.05
_SILENCE_MAX_S = 240
# After the last commit, until an idle driver has nothing left of it to do.
_SETTLED_AFTER_S = 30
_GRACE = timedelta(seconds=60)
_JVM = "SparkSubmit"
_WRITER = "headrace.writer.cli"
# Seconds by part of the writer, and by process.
Parts = dict[tuple[str, int], float]


def read_parts() -> Parts:
    """Return the processor seconds of the writer's JVM, driver and Python workers, and of the broker, by process.

    `forked` are processes that a JVM started and that have ended.
    """
    seconds: Parts = {}
    for process in [psutil.Process(), *psutil.Process().children(recursive=True)]:
        with suppress(psutil.NoSuchProcess):
            command = " ".join(process.cmdline())
            times = process.cpu_times()
            own = times.user + times.system
            ended = times.children_user + times.children_system
            # A JVM's command line names the module of the daemon, too.
            if _JVM in command:
                seconds["jvm", process.pid] = own
                seconds["forked", process.pid] = ended
            elif "java" in process.name():
                seconds["broker", process.pid] = own
            elif DAEMON_MODULE in command:
                seconds["workers", process.pid] = own + ended
            elif _WRITER in command or process.pid == os.getpid():
                seconds["driver", process.pid] = own
    return seconds


def each(before: Parts, after: Parts, count: float) -> dict[str, float]:
    """Return the seconds between two looks, divided by a count; `all` is the writer without the broker.

    What a process used that has ended meanwhile is not in it, but for `forked`.
    """
    used: dict[str, float] = defaultdict(float)
    for (part, pid), seconds in after.items():
        used[part] += seconds - before.get((part, pid), 0)
    writer = sum(used[part] for part in ("jvm", "forked", "driver", "workers"))
    return {"all": round(writer / count, 4), **{part: round(used[part] / count, 4) for part in sorted(used)}}


class SmallWriter:
    """The real writer over a fleet of small topics; as a context, which ends it."""

    def __init__(self, stack: Stack, directory: Path, fleet: Fleet, records: int, *flags: str, **commit: Any) -> None:
        """`records`: of a batch. `flags`: of the command. `commit`: more of that section."""
        self._job = job_of(stack, directory, fleet, records)
        self._job.scratch.mkdir(parents=True)
        self._job.log.touch()
        document = config(self._job, fleet)
        for pipeline in document["pipelines"].values():
            pipeline["commit"] |= commit
            # As a pipeline has it that says nothing of seals.
            del pipeline["seal"]
        path = directory / "headrace.yaml"
        path.write_text(yaml.safe_dump(document), encoding="utf-8")
        command = [sys.executable, "-m", _WRITER, "run", str(path), *flags]
        env = environment(self._job)
        self._process = ContenderProcess("the writer", command, cwd=self._job.scratch, log=self._job.log, env=env)
        self._process_group = ProcessGroup()

    def __enter__(self) -> Self:
        """Start it."""
        self._process_group.adopt()
        self._process.launch()
        return self

    def __exit__(self, *_: object) -> None:
        self._process.stop(grace=_GRACE)
        self._process_group.end(grace=_GRACE)

    def await_commits(self, count: int) -> tuple[int, Parts, float]:
        """Wait for so many commits. Returns how many there are, what was used by then, and the time by the clock.

        Raises BenchFailed.
        """
        commits = -1
        progress_s = time.monotonic()
        while True:
            commits_now = self._job.log.read_bytes().count(b"batch_committed")
            if commits_now >= count:
                return commits_now, read_parts(), time.monotonic()
            if commits_now > commits:
                commits = commits_now
                progress_s = time.monotonic()
            if self._process.has_ended() or time.monotonic() - progress_s > _SILENCE_MAX_S:
                raise BenchFailed(f"the writer made {commits_now} of {count} commits; look at {self._job.log}")
            time.sleep(_POLL_S)


def job_of(stack: Stack, directory: Path, fleet: Fleet, records: int) -> Job:
    """Return the job of a fleet's topics. `records`: of a batch."""
    return Job(
        bootstrap=stack.broker.bootstrap,
        registry_url=stack.registry.url,
        topic=fleet.topics[0],
        schema_id=0,
        schema_text="",
        events=fleet.event_count(),
        batch_events=records,
        time_field=TIME_FIELD,
        directory=str(directory),
        partitions=fleet.partitions,
    )


def measure_batches(stack: Stack, directory: Path, fleet: Fleet, batches: int, records: int) -> dict[str, Any]:
    """Measure small batches of a backlog, one after the other, once the writer is warm."""
    count = fleet.pipelines * batches
    with SmallWriter(stack, directory, fleet, records, "--once") as writer:
        first, before, began_s = writer.await_commits(int(count * _WARM_FROM))
        # The last ones would count the end of the process.
        last, after, ended_s = writer.await_commits(count - fleet.pipelines)
    return {"batches": last - first, "clock": (ended_s - began_s) / (last - first), **each(before, after, last - first)}


def measure_idle(stack: Stack, directory: Path, fleet: Fleet, seconds: float) -> dict[str, Any]:
    """Measure a second of a driver whose pipelines have nothing left to read."""
    with SmallWriter(stack, directory, fleet, fleet.event_count(), min_offsets=1) as writer:
        writer.await_commits(fleet.pipelines)
        time.sleep(_SETTLED_AFTER_S)
        before = read_parts()
        time.sleep(seconds)
        after = read_parts()
    return {"seconds": seconds, **each(before, after, seconds)}


def measure_floor(stack: Stack, directory: Path, fleet: Fleet, records: int) -> dict[str, dict[str, Any]]:
    """Measure batches of Spark alone by its settings in headrace: without tasks, and with a task that does nothing."""
    directory.mkdir()
    path = directory / "headrace.yaml"
    path.write_text(yaml.safe_dump(config(job_of(stack, directory, fleet, records), fleet)), encoding="utf-8")
    session = spark.session(load(path))
    options = {
        "kafka.bootstrap.servers": stack.broker.bootstrap,
        "subscribe": fleet.topics[0],
        "startingOffsets": "earliest",
        "maxOffsetsPerTrigger": str(records),
    }

    def run(name: str, run_tasks: Callable[[Any], object]) -> dict[str, Any]:
        looks = list[Parts]()

        def process(frame: Any, _: int) -> None:
            run_tasks(frame)
            looks.append(read_parts())

        stream = session.readStream.format("kafka").options(**options).load().writeStream.queryName(name)
        stream = stream.option("checkpointLocation", f"{directory}/checkpoint-{name}").trigger(availableNow=True)
        stream.foreachBatch(process).start().awaitTermination()
        first = int(len(looks) * _WARM_FROM)
        return {"batches": len(looks) - 1 - first, **each(looks[first], looks[-1], len(looks) - 1 - first)}

    try:
        # The first query pays for what is compiled.
        run("warm", _run_task)
        return {"empty batch": run("empty", lambda _: None), "with a task": run("task", _run_task)}
    finally:
        spark.stop_session(session)


def _run_task(frame: Any) -> None:
    """Run a task that does nothing, in the form of headrace's."""
    frame.sparkSession.sparkContext.parallelize([], 1).mapPartitionsWithIndex(_report).collect()


def _report(_: int, values: Iterator[Any]) -> Iterator[str]:
    assert not list(values), "the partition is empty"
    yield "{}"


def main(options: argparse.Namespace) -> None:
    """Measure, and say so."""
    for name in java_artifacts.DEMO_BUNDLES:
        java_artifacts.fetch(name, progress=lambda line: print(line, file=sys.stderr))
    pipelines = 1 if options.mode == "floor" else options.pipelines
    batches = 1 if options.mode == "idle" else options.batches
    fleet = Fleet(1, pipelines, pipelines * batches * options.records, dataset("200B"))
    with tempfile.TemporaryDirectory(prefix="headrace-small-") as parent, Stack(Path(parent) / "servers") as stack:
        fill(stack, fleet)
        directory = Path(parent) / "writer"
        result: Mapping[str, Any]
        if options.mode == "floor":
            result = measure_floor(stack, directory, fleet, options.records)
        elif options.mode == "idle":
            result = measure_idle(stack, directory, fleet, options.seconds)
        else:
            result = measure_batches(stack, directory, fleet, options.batches, options.records)
    print(json.dumps({"mode": options.mode, "pipelines": pipelines, "load": os.getloadavg()[0], **result}))


if __name__ == "__main__":
    parser = argparse.ArgumentParser(prog="python -m headrace.bench.features.small_batches", description=__doc__)
    parser.add_argument("mode", choices=("floor", "batches", "idle"))
    parser.add_argument("--pipelines", type=int, default=1)
    parser.add_argument("--batches", type=int, default=200, help="of each pipeline")
    parser.add_argument("--records", type=int, default=20, help="of a batch")
    parser.add_argument("--seconds", type=float, default=60, help="for which an idle driver is measured")
    try:
        main(parser.parse_args())
    except HeadraceError as error:
        print(f"bench: {error}", file=sys.stderr)
        sys.exit(error.exit_code)
