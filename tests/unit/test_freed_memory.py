"""A command that runs tasks keeps what they free, as Spark's workers do."""

import subprocess
import sys

from headrace.writer.driver.spark import WORKER_ENVIRONMENT

# Blocks that glibc would map by itself, and unmap when they are freed: their pages are cleared each time.
FAULTS = """
import resource
import pyarrow as pa
{}
def faults():
    return resource.getrusage(resource.RUSAGE_SELF).ru_minflt
def use():
    memoryview(pa.allocate_buffer(64 * 2**20)).cast("B")[::4096] = bytes(64 * 2**20 // 4096)
# The heap grows for some rounds.
for _ in range(20):
    use()
before = faults()
for _ in range(5):
    use()
print(pa.default_memory_pool().backend_name, faults() - before)
"""
KEEP = "from headrace.writer.core.freed_memory import keep_freed_memory\nkeep_freed_memory()"


def run(first: str) -> tuple[str, int]:
    """Return the memory pool, and the page faults of five uses of 16,384 pages."""
    answer = subprocess.run([sys.executable, "-c", FAULTS.format(first)], capture_output=True, check=True, text=True)
    pool, faults = answer.stdout.split()
    return pool, int(faults)


def test_freed_memory_is_used_again_without_the_kernel() -> None:
    pool, faults = run(KEEP)
    assert pool == WORKER_ENVIRONMENT["ARROW_DEFAULT_MEMORY_POOL"]
    assert faults < 16_384
    _, faults_without = run("pa.set_memory_pool(pa.system_memory_pool())")
    assert faults_without >= 5 * 16_384, "otherwise the test shows nothing"
