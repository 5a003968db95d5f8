"""A lake that a writer fills becomes Iceberg's by `headrace convert`, killed on its way; the writer reads on."""

import json
import signal
from collections.abc import Callable

import pytest

from tests.support import oracle
from tests.support.process import say
from tests.support.writer_process import Site

pytestmark = pytest.mark.slow
MakeTopic = Callable[..., str]


@pytest.mark.parametrize("form", ["delta", pytest.param("parquet", marks=pytest.mark.long)])
def test_the_writer_reads_on_from_the_frontier_and_no_writer_of_the_old_format_starts(
    site: Site, topic: MakeTopic, form: str
) -> None:
    site.overrides["catalog"] = {"type": "sql", "uri": f"sqlite:///{site.root}/catalog.db"}
    name = topic(2)
    lake = site.pipeline("events", [name], form=form)
    site.fill(name, 1_500, broken=4)
    site.once()
    site.fill(name, 1_000, seed=8, broken=3)
    ends = site.ends(name)
    site.pipeline("events", [name], form="iceberg")
    assert "`headrace convert` makes an Iceberg table of it" in site.once(code=2)
    say("convert", str(site.config), "--yes", code=-signal.SIGKILL, HEADRACE_FAULT="before_catalog:2")
    site.pipeline("events", [name], form=form)
    assert "nothing follows version" in site.once(code=2)
    site.pipeline("events", [name], form="iceberg")
    tables = json.loads(say("convert", str(site.config), "--yes", "--json"))["tables"]
    assert [(table["rows"], table["done"]) for table in tables] == [(1_500, True), (4, True)]
    site.once()
    oracle.check(lake, "events", ends)
    assert oracle.count(lake) == 2_500
    assert json.loads(say("audit", str(site.config), "--deep", "--json"))["pipelines"]["events"]["adds_up"]
