"""Runs thousands of small commits through the real writer, and checks that neither time nor memory grows.

By itself: python -m headrace.bench.features.soak [--commits 2000] [--json FILE] [--plot FILE]
"""

import argparse
import json
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from datetime import timedelta
from pathlib import Path
from statistics import median

import psutil
import yaml
from confluent_kafka import Producer

from headrace.bench.contenders.contenders import PIPELINE, configuration
from headrace.bench.contenders.race import ContenderProcess
from headrace.bench.data.dataset import dataset
from headrace.bench.data.fill import fill
from headrace.bench.figures import BenchFailed
from headrace.bench.job import PARTITIONS, Job
from headrace.writer.demo.devstack.stack import Stack
from headrace.writer.demo.devstack.workspace import ProcessGroup
from headrace.writer.driver.child_processes import DAEMON_MODULE
from headrace.writer.table.factory import table_at

# Records of a commit. There is about one commit a second, as often as Spark looks for new offsets.
RECORDS = 1000
# So many of the first commits are compared with as many of the last.
WINDOW = 100
LATENCY_RATIO_MAX = 1.5
MEMORY_RATIO_MAX = 1.15
# The time between two samples, and between two portions of events.
_PAUSE = timedelta(milliseconds=500)
_COMMIT_WITHIN = timedelta(minutes=2)
_MIB = 2**20


@dataclass(frozen=True)
class Sample:
    """Resident bytes of the driver's Python, of its JVM and of the Python workers, after so many commits."""

    commits: int
    python: int
    jvm: int
    workers: int


@dataclass(frozen=True)
class SoakResult:
    """What was seen: for each commit the driver's wall seconds, and memory along the way."""

    # The seconds of each commit to read topics and table, to redo, and to plan the range.
    look_s: Sequence[float]
    # The seconds of each commit to write the entry of the log, and the dead letters after it.
    commit_s: Sequence[float]
    samples: Sequence[Sample]
    files: int

    def latency(self) -> tuple[float, float]:
        """Return the median seconds of look and commit together, of the first and of the last commits."""
        both = [look + commit for look, commit in zip(self.look_s, self.commit_s, strict=True)]
        return median(both[:WINDOW]), median(both[-WINDOW:])

    def memory(self) -> tuple[int, int]:
        """Return the median resident bytes of the driver, its JVM with it, after the first commits and at the last."""
        sizes = [(sample.commits, sample.python + sample.jvm) for sample in self.samples]
        last = max(commits for commits, _ in sizes)
        # Spark still warms up during the commits before this one.
        begin = min(WINDOW, last // 2)
        first = [size for commits, size in sizes if begin <= commits <= begin + WINDOW]
        return int(median(first)), int(median(size for commits, size in sizes if commits > last - WINDOW))

    def problems(self) -> list[str]:
        """What is beyond its limit, each as a sentence."""
        early, late = self.latency()
        small, large = self.memory()
        problems = []
        if late > LATENCY_RATIO_MAX * early:
            problems.append(
                f"a commit took {late / early:.2f} times as long at the end, {LATENCY_RATIO_MAX} is the limit"
            )
        if large > MEMORY_RATIO_MAX * small:
            problems.append(f"the driver grew to {large / small:.2f} times its size, {MEMORY_RATIO_MAX} is the limit")
        return problems

    def sentence(self) -> str:
        """Say the figures."""
        early, late = self.latency()
        small, large = self.memory()
        return (
            f"{len(self.commit_s):,} commits, {self.files:,} files: look and commit take {1000 * early:.0f} ms at the "
            f"start and {1000 * late:.0f} ms at the end (x {late / early:.2f}); the driver has {small / _MIB:,.0f} MiB "
            f"at the start and {large / _MIB:,.0f} MiB at the end (x {large / small:.2f})"
        )


def soak(commits: int, directory: Path, progress: Callable[[str], None]) -> SoakResult:
    """Run the writer on a topic that is filled as fast as it commits. Raises BenchFailed if it fails or gets stuck."""
    data = dataset("200B")
    with Stack(directory / "servers") as stack:
        filled = fill(stack.broker.bootstrap, stack.registry.url, "soak", data, RECORDS)
        job = Job(
            stack.broker.bootstrap,
            stack.registry.url,
            "soak",
            filled.schema_id,
            data.schema_text,
            0,
            10 * RECORDS,
            "event_time",
            str(directory / "writer"),
        )
        job.scratch.mkdir(parents=True)
        job.log.touch()
        process = ContenderProcess(
            "the writer", _command(job), cwd=job.scratch, log=job.log, env={"TMPDIR": str(job.scratch)}
        )
        process_group = ProcessGroup()
        process_group.adopt()
        try:
            process.launch()
            samples = _send_events(process, job, commits, progress)
        finally:
            process.stop(grace=timedelta(seconds=30))
            process_group.end(grace=timedelta(seconds=30))
    table = table_at("delta", str(job.table), PIPELINE)
    facts = [committed.facts for committed in table.commits_since(-1)]
    # The cost of the last commit is in no later entry.
    looks = [about["phases"]["look"] for about in facts[:-1]]
    spent = [sum(about["former"]["phases"].values()) for about in facts[1:]]
    return SoakResult(looks, spent, samples, sum(about["files"] for about in facts))


def _command(job: Job) -> list[str]:
    settings = yaml.safe_load(configuration(job))
    settings["pipelines"][PIPELINE]["commit"] |= {"min_offsets": RECORDS // 2, "max_delay": "5 s"}
    path = Path(job.directory) / "headrace.yaml"
    path.write_text(yaml.safe_dump(settings), encoding="utf-8")
    return [sys.executable, "-m", "headrace.writer.cli", "run", str(path)]


def _send_events(process: ContenderProcess, job: Job, commits: int, progress: Callable[[str], None]) -> list[Sample]:
    """Send events until there are so many commits, looking at the memory on the way."""
    data = dataset("200B")
    producer = Producer({"bootstrap.servers": job.bootstrap, "log_level": 0})
    sent = RECORDS
    samples: list[Sample] = []
    commits_before = 0
    progress_s = time.monotonic()
    while commits_before < commits:
        if process.has_ended():
            raise BenchFailed(f"the writer ended after {commits_before} commits; look at {job.log}")
        for i, value in enumerate(data.encode(sent, RECORDS // 2, schema_id=job.schema_id).to_pylist()):
            producer.produce(job.topic, value, partition=i % PARTITIONS)
        producer.flush(30)
        sent += RECORDS // 2
        time.sleep(_PAUSE.total_seconds())
        commits_now = job.log.read_bytes().count(b"batch_committed")
        if commits_now > commits_before:
            progress_s = time.monotonic()
            samples.append(_sample(commits_now))
            if commits_now // WINDOW > commits_before // WINDOW:
                progress(f"{commits_now} commits")
        elif time.monotonic() - progress_s > _COMMIT_WITHIN.total_seconds():
            raise BenchFailed(f"no commit within {_COMMIT_WITHIN}; look at {job.log}")
        commits_before = commits_now
    return samples


def _sample(commits: int) -> Sample:
    sizes = {"python": 0, "jvm": 0, "workers": 0}
    for process in psutil.Process().children(recursive=True):
        try:
            command_line = " ".join(process.cmdline())
            size = process.memory_info().rss
        except psutil.NoSuchProcess:
            continue
        if "headrace.writer.cli" in command_line:
            sizes["python"] += size
        elif DAEMON_MODULE in command_line:
            sizes["workers"] += size
        elif "SparkSubmit" in command_line:
            sizes["jvm"] += size
    return Sample(commits, **sizes)


def draw(result: SoakResult, path: Path) -> None:
    """Plot latency and memory over the commits."""
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    figure = Figure(figsize=(8, 5), layout="constrained")
    FigureCanvasAgg(figure)
    upper, lower = figure.subplots(2, 1, sharex=True)
    both = [1000 * (look + commit) for look, commit in zip(result.look_s, result.commit_s, strict=True)]
    upper.plot(both, ".", markersize=2, color="#b8c4cc", label="each")
    rolling = [median(both[max(0, i - WINDOW + 1) : i + 1]) for i in range(len(both))]
    upper.plot(rolling, color="#1f6f8b", label=f"median of {WINDOW}")
    upper.set_ylim(0, 3 * max(rolling[WINDOW:] or rolling))
    upper.set_ylabel("look and commit, ms")
    upper.legend(frameon=False, loc="lower right", ncols=2, bbox_to_anchor=(1, 1))
    commits = [sample.commits for sample in result.samples]
    for name, colour in (("jvm", "#d08c3f"), ("python", "#1f6f8b"), ("workers", "#777777")):
        lower.plot(commits, [getattr(sample, name) / _MIB for sample in result.samples], color=colour, label=name)
    lower.set_ylim(bottom=0)
    lower.set_ylabel("resident memory, MiB")
    lower.set_xlabel("commits")
    lower.legend(frameon=False, loc="lower right", ncols=3, bbox_to_anchor=(1, 1))
    for axes in (upper, lower):
        for side in ("top", "right"):
            axes.spines[side].set_visible(False)
    figure.savefig(path, dpi=140)


def main(arguments: Sequence[str]) -> int:
    """Soak, and say what was seen. Returns 1 when a limit is passed."""
    parser = argparse.ArgumentParser(prog="python -m headrace.bench.features.soak", description=__doc__)
    parser.add_argument("--commits", type=int, default=2000)
    parser.add_argument("--json", type=Path)
    parser.add_argument("--plot", type=Path)
    options = parser.parse_args(arguments)
    with tempfile.TemporaryDirectory(prefix="headrace-soak-", ignore_cleanup_errors=True) as directory:
        result = soak(options.commits, Path(directory), lambda line: print(line, flush=True))
    if options.json:
        options.json.write_text(json.dumps(asdict(result)), encoding="utf-8")
    if options.plot:
        draw(result, options.plot)
    print(result.sentence())
    for problem in result.problems():
        print(problem)
    return 1 if result.problems() else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
