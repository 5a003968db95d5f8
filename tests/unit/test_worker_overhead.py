"""What PySpark's daemon of Python workers does once, so that each task costs less."""

import subprocess
import sys
from pathlib import Path

# Each runs in a process of its own, as the daemon is one.
FREEZES = """
import gc, sys
from headrace.writer.driver import worker_overhead
before = gc.get_freeze_count()
worker_overhead.reduce_overhead(["json.tool", "no_such_module"])
print("json.tool" in sys.modules, gc.get_freeze_count() - before > 1000, len(gc.get_objects()) < 1000)
"""
ARCHIVES = """
import importlib, os, sys, zipfile, zipimport
from headrace.writer.driver import worker_overhead
path = sys.argv[1]

def write(*names):
    with zipfile.ZipFile(path + ".new", "w") as archive:
        for name in names:
            archive.writestr(name + ".py", "")
    os.replace(path + ".new", path)

reads = []
read_again = zipimport.zipimporter.invalidate_caches
zipimport.zipimporter.invalidate_caches = lambda importer: (reads.append(importer.archive), read_again(importer))
write("first")
sys.path.insert(0, path)
import first
worker_overhead.reduce_overhead([])
reads.clear()
importlib.invalidate_caches()
print(reads.count(path))
write("first", "second_module")
importlib.invalidate_caches()
print(reads.count(path))
import second_module
os.remove(path)
importlib.invalidate_caches()
importlib.invalidate_caches()
print(reads.count(path))
"""
THREADS = """
import os
os.environ |= {"ARROW_DEFAULT_MEMORY_POOL": "system", "OMP_NUM_THREADS": "1"}
from headrace.writer.driver import worker_overhead
worker_overhead.reduce_overhead()
names = [open(f"/proc/self/task/{number}/comm").read().strip() for number in os.listdir("/proc/self/task")]
# Arrow loads jemalloc, whose memory nothing takes here.
print(len([name for name in names if not name.startswith("jemalloc")]))
"""


def run(code: str, *arguments: str) -> list[str]:
    command = [sys.executable, "-c", code, *arguments]
    return subprocess.run(command, capture_output=True, text=True, check=True, timeout=120).stdout.split("\n")[:-1]


def test_what_tasks_import_is_there_before_a_fork_and_no_collection_looks_at_it() -> None:
    assert run(FREEZES) == ["True True True"]


def test_an_archive_on_the_path_is_read_again_only_when_it_changed(tmp_path: Path) -> None:
    assert run(ARCHIVES, str(tmp_path / "modules.zip")) == ["0", "1", "2"]


def test_no_thread_runs_that_a_forked_worker_would_miss() -> None:
    assert run(THREADS) == ["1"]
