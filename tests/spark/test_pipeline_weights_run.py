"""A rate limit and the weights of a real driver: of two pipelines, and of forty that want more than there is."""

import json
import time
from collections.abc import Callable, Mapping
from datetime import datetime
from itertools import pairwise
from statistics import median
from typing import Any
from urllib.request import urlopen

import pytest

from tests.support import oracle
from tests.support.process import say
from tests.support.writer_process import Site, Writer

pytestmark = pytest.mark.slow
MakeTopic = Callable[..., str]
PIPELINES, RECORDS, ROWS, MEASURED = 40, 600_000, 10_000, 200  # ROWS of a batch; MEASURED: batches


def status(site: Site) -> Mapping[str, Any]:
    """What the driver says of its pipelines."""
    name = next(iter(site.pipelines))
    driver = json.loads((site.root / "checkpoints" / name / "driver.json").read_text())
    with urlopen(driver["url"] + "/status", timeout=60) as answer:
        return dict(json.loads(answer.read())["pipelines"])


def read(one: Mapping[str, Any]) -> int:
    return int(one["totals"]["records"]["read"])


def test_a_rate_limit_holds_and_is_lifted_while_the_driver_runs(site: Site, topic: MakeTopic) -> None:
    name = topic(1)
    limited = site.pipeline("limited", [name], commit={"max_delay": "4 s", "max_records_per_second": 50})
    free = site.pipeline("free", [name], commit={"max_delay": "4 s"}, scheduling={"weight": 3, "min_share": 1})
    site.fill(name, 1_000)
    writer = site.start()
    writer.until(lambda: writer.output().count("batch_committed") >= 4)
    told = status(site)
    assert told["limited"]["rate_limit"]["records_per_second"] == 50
    assert told["free"]["rate_limit"] is None
    assert told["free"]["scheduling"] == {"pool": "free", "weight": 3, "min_share": 1}
    assert read(told["free"]) == 1_000, "what another one may not carry is no matter of this one"

    said = say("limit", str(site.config), "--pipeline", "limited", "--records-per-second", "100000", "--reason", "late")
    assert "it was 50 records/s" in " ".join(str(said).split())
    writer.until(lambda: read(status(site)["limited"]) == 1_000)
    assert status(site)["limited"]["rate_limit"]["override"]["reason"] == "late"
    writer.stop()
    batches = [commit for commit in oracle.replay(limited).commits if commit["kind"] == "batch"]
    begun = [datetime.fromisoformat(str(batch["started"])) for batch in batches]
    rates = [batch["rate_limit"]["records_per_second"] for batch in batches]
    kept = rates.index(100_000) if 100_000 in rates else len(rates)
    assert [batch["offsets"] for batch in batches] == [200] * 5, "50 records a second for four seconds"
    assert kept >= 3
    assert all((later - former).total_seconds() >= 3.9 for former, later in pairwise(begun[:kept]))
    for lake, pipeline in ((limited, "limited"), (free, "free")):
        oracle.check(lake, pipeline, {(name, 0): 1_000})


def rates_by_weight(site: Site, writer: Writer) -> dict[int, list[float]]:
    """Measure what each pipeline commits in a second, by its weight."""
    before, began, ended = status(site), time.monotonic(), writer.commits() + MEASURED
    writer.until(lambda: writer.commits() >= ended, 600)
    after, took = status(site), time.monotonic() - began
    found = dict[int, list[float]]()
    for name, one in after.items():
        assert one["lag"]["offsets"], f"{name} has nothing left to carry: the figures would mean nothing"
        found.setdefault(one["scheduling"]["weight"], []).append((read(one) - read(before[name])) / took)
    return found


@pytest.mark.timeout(1_500)
def test_forty_pipelines_share_the_slots_by_weight(site: Site, topic: MakeTopic) -> None:
    name = topic(1)
    site.overrides["spark"] = {"master": "local[2, 4]"}
    for i in range(PIPELINES):  # those with the larger weight come last by name, which Spark alone would let starve
        weight = 1 if i < PIPELINES // 2 else 4
        site.pipeline(
            f"p{i:02}", [name], commit={"max_delay": "2 s", "min_offsets": ROWS, "max_offsets": ROWS},
            scheduling={"weight": weight},
        )  # fmt: skip
    writer = site.start()
    try:
        writer.until(lambda: writer.output().count("pipeline_started") == PIPELINES, 300)
        values = site.values(name, 2_000)
        for _ in range(RECORDS // len(values)):
            site.send(name, values)
        writer.until(lambda: all(read(value) for value in status(site).values()), 500)  # none starves
        rates = rates_by_weight(site, writer)
    finally:
        writer.kill()
    for weight, found in sorted(rates.items()):
        print(f"weight {weight}: {len(found)} pipelines, {sum(found):,.0f} rows/s in all; each {median(found):,.0f}, "
              f"from {min(found):,.0f} to {max(found):,.0f}")  # fmt: skip
    # Of 200 counted batches 40 are of the weight 1, give or take 6: without weights the ratio is 1.
    assert 2.5 <= sum(rates[4]) / sum(rates[1]) <= 6.5
