"""A Spark worker imports the product by its one name."""

from collections.abc import Callable
from pathlib import Path

import pytest

from tests.support import oracle
from tests.support.writer_process import Site

PACKAGES = {"autoscaler", "bench", "bucketers", "recovery", "writer"}


@pytest.mark.slow
@pytest.mark.timeout(300)
@pytest.mark.parametrize("reader", ["native", "spark"])
def test_a_worker_imports_no_module_by_two_names(
    site: Site, topic: Callable[..., str], tmp_path: Path, reader: str
) -> None:
    name = topic(1)
    site.reader = reader
    modules = tmp_path / "modules"
    bucket = {"type": "tests.support.loaded_modules:LoadedModules", "file": str(modules)}
    lake = site.pipeline("events", [name], bucket=bucket)
    site.fill(name, 100)
    # Its working directory is the repository, from which a worker could import each package by itself. A JVM of its own
    # has the variables of this process, so that tasks find the bucketer.
    writer = site.start("--once")
    assert writer.wait(240) == 0, writer.output()
    oracle.check(lake, "events", site.ends(name))
    names = set(modules.read_text().splitlines())
    assert "pyspark.worker" in names or "pyspark.daemon" in names
    assert {"headrace.writer.batch.task", "headrace.bucketers"} <= names
    assert {name.partition(".")[0] for name in names} & PACKAGES == set()
