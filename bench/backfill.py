"""Measures a backfill beside a live stream: its speed, and the live writer's lag. Counts every event.

By itself: python -m bench.backfill [--events 5M] [--live 2000] [--rate N] [--chunk-rows 500000] [--json FILE]
"""

import argparse
import json
import os
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass, field
from datetime import timedelta
from pathlib import Path
from subprocess import PIPE, run

import duckdb
import yaml
from confluent_kafka import Producer
from deltalake import DeltaTable

from bench.cli import number
from bench.contenders import PIPELINE, configuration
from bench.data import DataSet, dataset
from bench.figures import BenchFailed
from bench.fill import fill
from bench.job import PARTITIONS, Job
from bench.race import Contending
from writer.clients.driver_endpoint import announced, status_at
from writer.demo.devstack.stack import Stack
from writer.demo.devstack.workspace import ProcessGroup

FIRST = 2_000  # events that the table has before the gap
MAX_DELAY = timedelta(seconds=10)  # of the live writer's commits
LAG_MAX = MAX_DELAY + timedelta(seconds=30)  # its objective: its delay, and time for a batch
_LOOK_S = 1.0
_GRACE = timedelta(seconds=60)
_STARTED_WITHIN_S = 300
_CAUGHT_UP_WITHIN_S = 300


@dataclass
class Filled:
    """What was seen."""

    events: int
    skipped: int
    live_a_second: float
    seconds: float = 0.0  # of the backfill, from its start to its end
    chunks: int = 0
    waited: int = 0  # times that it waited for the live writer
    lag_s: list[float] = field(default_factory=list)  # of the live writer, while it ran
    lag_before_s: list[float] = field(default_factory=list)
    rows: int = 0
    distinct: int = 0
    audit_adds_up: bool = False

    def problems(self) -> list[str]:
        """What is not as it must be, each as a sentence."""
        found = []
        if (self.rows, self.distinct) != (self.events, self.events):
            found.append(f"{self.events:,} events were sent; {self.rows:,} rows, {self.distinct:,} distinct")
        if not self.audit_adds_up:
            found.append("the deep audit does not add up")
        if self.lag_s and max(self.lag_s) > LAG_MAX.total_seconds():
            found.append(
                f"the live writer was {max(self.lag_s):.0f} s behind, {LAG_MAX.total_seconds():.0f} is the limit"
            )
        return found

    def sentence(self) -> str:
        """Say the figures."""
        before, beside = max(self.lag_before_s, default=0), max(self.lag_s, default=0)
        return (
            f"{self.skipped:,} events of a gap in {self.seconds:.0f} s ({self.skipped / max(self.seconds, 1):,.0f} a "
            f"second) in {self.chunks} chunks beside {self.live_a_second:,.0f} live events a second; the live writer "
            f"was at most {beside:.0f} s behind ({before:.0f} s before; its aim is {LAG_MAX.total_seconds():.0f} s), "
            f"the backfill waited {self.waited} times; {self.rows:,} rows, {self.distinct:,} distinct"
        )


class Stream:
    """Live events, so many a second, until it is stopped."""

    def __init__(self, job: Job, data: DataSet, first: int, a_second: float) -> None:
        self._job, self._data, self.sent, self._rate = job, data, first, a_second
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._run, name="live", daemon=True)

    def start(self) -> None:
        """Begin."""
        self._thread.start()

    def stop(self) -> int:
        """End. Returns how many events the topic has."""
        self._stop.set()
        self._thread.join()
        return self.sent

    def _run(self) -> None:
        producer = Producer({"bootstrap.servers": self._job.bootstrap, "log_level": 0, "enable.idempotence": True})
        count = max(1, round(self._rate / 2))
        while not self._stop.wait(0.5):
            values = self._data.encode(self.sent, count, schema_id=self._job.schema_id).to_pylist()
            for i, value in enumerate(values):
                producer.produce(self._job.topic, value, partition=i % PARTITIONS)
                producer.poll(0)
            producer.flush(30)
            self.sent += count


def measure(events: int, live: float, flags: Sequence[str], directory: Path, progress: Callable[[str], None]) -> Filled:
    """Skip `events`, then fill the gap while `live` events a second come. Raises BenchFailed."""
    data = dataset("200B")
    with Stack(directory / "servers") as stack:
        first = fill(stack.broker.bootstrap, stack.registry.url, "backfill", data, FIRST)
        job = Job(
            stack.broker.bootstrap, stack.registry.url, "backfill", first.schema_id, data.schema_text, 0, 500_000,
            "event_time", str(directory / "writer"),
        )  # fmt: skip
        job.scratch.mkdir(parents=True)
        job.log.touch()
        path = _configured(job)
        _verb("run", str(path), "--once")
        progress(f"sending {events:,} events")
        _send(job, data, events)
        _verb("gaps", "open", str(path), "--reason", "a bench", "--yes")
        seen = Filled(FIRST + events, events, live)
        process = Contending("the writer", [sys.executable, "-m", "writer.cli", "run", str(path)], cwd=job.scratch,
                             log=job.log, env={"TMPDIR": str(job.scratch)})  # fmt: skip
        stream, process_group = Stream(job, data, FIRST + events, live), ProcessGroup()
        process_group.adopt()
        try:
            process.launch()
            stream.start()
            _until(lambda: _warm(job), _STARTED_WITHIN_S, "the live writer does not catch up", process)
            seen.lag_before_s = _watched(job, process, lambda: False, seconds=2 * MAX_DELAY.total_seconds())
            progress("filling the gap")
            _filled(job, path, flags, process, seen)
            seen.events = stream.stop()
            _until(lambda: _rows(job)[0] >= seen.events, _CAUGHT_UP_WITHIN_S, "the live writer is not done", process)
        finally:
            stream.stop()
            process.stop(grace=_GRACE)
            process_group.end(grace=_GRACE)
        seen.rows, seen.distinct = _rows(job)
        audited = json.loads(_verb("audit", str(path), "--deep", "--json", codes=(0, 1)))
        seen.audit_adds_up = audited["pipelines"][PIPELINE]["adds_up"]
    return seen


def _configured(job: Job) -> Path:
    settings = yaml.safe_load(configuration(job))
    settings["pipelines"][PIPELINE]["commit"] |= {"max_delay": f"{MAX_DELAY.total_seconds():.0f} s"}
    path = Path(job.directory) / "headrace.yaml"
    path.write_text(yaml.safe_dump(settings), encoding="utf-8")
    return path


def _filled(job: Job, path: Path, flags: Sequence[str], process: Contending, seen: Filled) -> None:
    """Run the backfill to its end, looking at the live writer meanwhile."""
    out: list[str] = []
    began = time.monotonic()
    doing = threading.Thread(
        target=lambda: out.append(_verb("backfill", str(path), "--yes", "--json", *flags, codes=(0, 1)))
    )
    doing.start()
    seen.lag_s = _watched(job, process, lambda: not doing.is_alive(), seconds=24 * 3600)
    doing.join()
    seen.seconds = time.monotonic() - began
    if not out:
        raise BenchFailed("the backfill failed; what it said stands above")
    told = [json.loads(line) for line in out[0].splitlines() if line.startswith("{")]
    seen.chunks = sum(one["event"] == "chunk" for one in told)
    seen.waited = sum(one["event"] == "waits" for one in told)
    if told[-1]["gaps"][0]["state"] != "done":
        raise BenchFailed(f"the gap is not filled: {told[-1]}")


def _watched(job: Job, process: Contending, enough: Callable[[], bool], *, seconds: float) -> list[float]:
    """Look at the lag of the live writer until it is enough, or the time is over."""
    found: list[float] = []
    end = time.monotonic() + seconds
    while not enough() and time.monotonic() < end:
        if process.ended():
            raise BenchFailed(f"the live writer ended; look at {job.log}")
        found += _lag(job)
        time.sleep(_LOOK_S)
    return found


def _warm(job: Job) -> bool:
    """Return whether the live writer has committed some batches and is not behind: what its start cost is over."""
    behind = max(_lag(job), default=float("inf"))
    return job.log.read_bytes().count(b"batch_committed") > 1 and behind <= LAG_MAX.total_seconds()


def _lag(job: Job) -> list[float]:
    """Ask the live writer how many seconds it is behind; nothing while it does not say."""
    driver = announced(f"{job.directory}/checkpoints", PIPELINE)
    if driver is None:
        return []
    with suppress(LookupError):
        found = (status_at(driver.url) or {})["pipelines"][PIPELINE]
        seconds = found["lag"]["seconds"]
        return [] if seconds is None or found["state"] != "running" else [float(seconds)]
    return []


def _until(condition: Callable[[], bool], seconds: float, what: str, process: Contending) -> None:
    end = time.monotonic() + seconds
    while not condition():
        if process.ended() or time.monotonic() > end:
            raise BenchFailed(f"{what} within {seconds:.0f} s")
        time.sleep(_LOOK_S)


def _rows(job: Job) -> tuple[int, int]:
    """Let DuckDB count the rows that readers see, and the distinct ones."""
    files = DeltaTable(str(job.table)).file_uris()
    counted = duckdb.execute(
        "SELECT count(*), count(DISTINCT (_topic, _incarnation, _partition, _offset)) FROM read_parquet($1)", [files]
    ).fetchone()
    assert counted is not None
    return int(counted[0]), int(counted[1])


def _send(job: Job, data: DataSet, events: int) -> None:
    """Send events behind the first ones."""
    producer = Producer({
        "bootstrap.servers": job.bootstrap, "log_level": 0, "enable.idempotence": True, "linger.ms": 50,
        "compression.type": "lz4", "queue.buffering.max.messages": 400_000,
    })  # fmt: skip
    block = 20_000
    for turn, start in enumerate(range(0, events, block)):
        count = min(block, events - start)
        values = data.encode(FIRST + start, count, schema_id=job.schema_id).to_pylist()
        while len(producer) > 10 * block:
            producer.poll(0.05)
        producer.produce_batch(job.topic, [{"value": value} for value in values], partition=turn % PARTITIONS)
    if producer.flush(120):
        raise BenchFailed(f"the broker {job.bootstrap} did not take all events within 120 s")


def _verb(*words: str, codes: Sequence[int] = (0,)) -> str:
    """Run a verb of the command to its end. Returns what it said."""
    done = run([sys.executable, "-m", "writer.cli", *words], stdout=PIPE, env=dict(os.environ), check=False)  # noqa: S603
    if done.returncode not in codes:
        raise BenchFailed(f"headrace {words[0]} ended with code {done.returncode}")
    return done.stdout.decode()


def main(words: Sequence[str]) -> int:
    """Measure, and say what was seen. Returns 1 when something is not as it must be."""
    parser = argparse.ArgumentParser(prog="python -m bench.backfill", description=__doc__)
    parser.add_argument("--events", type=number, default=5_000_000, help="how many are skipped")
    parser.add_argument("--live", type=float, default=2_000, help="live events a second meanwhile")
    parser.add_argument("--rate", help="rows a second that the backfill may bring")
    parser.add_argument("--chunk-rows", default="500000", help="offsets of one of its commits")
    parser.add_argument("--json", type=Path)
    wanted = parser.parse_args(words)
    flags = ["--chunk-rows", wanted.chunk_rows, *(["--rate", wanted.rate] if wanted.rate else [])]
    with tempfile.TemporaryDirectory(prefix="headrace-backfill-", ignore_cleanup_errors=True) as directory:
        seen = measure(wanted.events, wanted.live, flags, Path(directory), lambda line: print(line, flush=True))
    if wanted.json:
        wanted.json.write_text(json.dumps(asdict(seen)), encoding="utf-8")
    print(seen.sentence())
    for problem in seen.problems():
        print(problem)
    return 1 if seen.problems() else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
