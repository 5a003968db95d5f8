"""A contender watched from outside: what is counted, refused, left. The contenders are small scripts."""

import subprocess
import sys
import textwrap
import time
from dataclasses import replace
from pathlib import Path

import psutil
import pytest
import yaml

from headrace.bench.contenders import race
from headrace.bench.contenders.contenders import CONTENDERS, Contender, configuration
from headrace.bench.contenders.measure import Meter, duty
from headrace.bench.data.dataset import dataset
from headrace.bench.figures import BenchFailed, Run, WrittenTable, warm
from headrace.bench.job import Job, load
from headrace.bench.rounds import Setting

BURN = "import time\nwhile time.process_time() < {}: pass\n"
MARKS = 'print("batch_committed batch=0 read=600", flush=True)\n{}print("batch_committed read=400", flush=True)\n'
THREE_MARKS = f"""{BURN.format(0.5)}
print("batch_committed read=300", flush=True)
print("batch_committed read=200", flush=True)
"""


def carry(tmp_path: Path, script: str, *, rows: int = 1000) -> Run:
    job = Job("broker:1", "http://registry", "events", 1, "{}", 1000, 600, "event_time", str(tmp_path / "run"))
    contender = Contender(
        "x", "a script", "burns", lambda _: [sys.executable, "-c", script], lambda _: WrittenTable(1, 10, rows)
    )
    return race.run(contender, job, repeat=1, value_bytes=200_000)


def test_marks_and_processor_time_are_seen_from_outside(tmp_path):
    found = carry(tmp_path, 'print("batch_committed read=500", flush=True)\n' + THREE_MARKS)
    assert [mark.events for mark in found.marks] == [500, 800, 1000]
    assert warm(found).events == 500
    assert warm(found).usage.cpu_s == pytest.approx(0.5, abs=0.2)
    assert found.end.cpu_s == pytest.approx(0.5, abs=0.2)
    assert found.rss_peak_bytes > 2**20


def test_a_batch_says_how_long_it_took_or_does_not(tmp_path):
    lines = ["batch_committed read=600 rows=600 seconds=12.5", 'batch_committed read=400 steps={"decode": 2}']
    found = carry(tmp_path, "".join(f"print({line!r}, flush=True)\n" for line in lines))
    assert [(mark.batch_s, dict(mark.steps)) for mark in found.marks] == [(12.5, {}), (None, {"decode": 2})]


def test_processes_that_ended_or_lost_their_parent_are_counted(tmp_path):
    leaves = f"import subprocess, sys\nsubprocess.Popen([sys.executable, '-c', {BURN.format(0.4)!r}])\n"
    runs = f"import subprocess, sys\nsubprocess.run([sys.executable, '-c', {BURN.format(0.4)!r}])\n"
    middle = f"subprocess.run([sys.executable, '-c', {leaves!r}])\n"
    found = carry(tmp_path, runs + middle + MARKS.format(""))
    assert found.end.cpu_s == pytest.approx(0.8, abs=0.3)


def test_a_contender_that_fails_leaves_nothing_behind(tmp_path):
    script = """
        import subprocess, sys
        subprocess.Popen(["sleep", "1000"], start_new_session=True)
        sys.exit("no broker there")
        """
    with pytest.raises(BenchFailed, match=r"a script ended with code 1\.(?s:.*)no broker there"):
        carry(tmp_path, textwrap.dedent(script))
    assert [child for child in psutil.Process().children() if child.name() == "sleep"] == []
    assert not (tmp_path / "run" / "scratch").exists()


def test_a_contender_that_carried_less_is_refused(tmp_path):
    with pytest.raises(BenchFailed, match="read 400 of 1,000"):
        carry(tmp_path, 'print("batch_committed read=400")')
    with pytest.raises(BenchFailed, match="holds 998 rows"):
        carry(tmp_path / "again", MARKS.format(""), rows=998)


def test_the_meter_leaves_out_who_was_there_before():
    stranger = subprocess.Popen([sys.executable, "-c", BURN.format(60)])
    try:
        meter = Meter(frozenset(child.pid for child in psutil.Process().children(recursive=True)))
        time.sleep(0.2)
        assert meter.read().cpu_s < 0.05
    finally:
        stranger.kill()
        stranger.wait()


@pytest.mark.parametrize(
    ("thread", "what"),
    [("C2 CompilerThre", "compile"), ("GC Thread#0", "collect garbage"), ("Executor task l", "tasks"), ("x", "other")],
)
def test_threads_are_known_by_their_names(thread, what):
    assert duty(thread) == what


def test_a_job_is_read_as_it_was_saved(tmp_path):
    job = Job("broker:1", "http://registry", "events", 1, '{"type": "long"}', 9, 3, "event_time", str(tmp_path))
    older = replace(job, older_schemas=((2, '"int"'),), slots=3)
    assert load(job.save()) == job
    assert load(older.save()) == older


def test_slots_are_those_of_spark(tmp_path):
    job = Job("broker:1", "http://registry", "events", 1, "{}", 9, 3, "event_time", str(tmp_path), slots=3)
    assert yaml.safe_load(configuration(job))["spark"]["master"] == "local[3]"


def test_mixed_schemas_are_read_by_contenders_that_look_at_each_record():
    setting = Setting([dataset("200B-headers"), dataset("mixed")], 10_000, [*CONTENDERS.values()], 1)
    readers = {data.name: {contender.letter for contender in setting.contenders_on(data)} for data in setting.data_sets}
    assert readers == {"200B-headers": set(CONTENDERS), "mixed": set("adefjk")}
