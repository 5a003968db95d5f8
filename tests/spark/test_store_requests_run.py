"""The metrics of a real driver have the requests of its tasks, too: as many as a proxy in front of S3 saw."""

from collections.abc import Callable

import pytest

from headrace.bench.features.request_counter import RequestCounter
from tests.servers.objects import KEY, SECRET, ObjectServer
from tests.support.store_requests import scrape, scraped_requests
from tests.support.writer_process import Site

pytestmark = pytest.mark.slow
RECORDS = 500
BROKEN = 5


def test_a_driver_counts_the_requests_of_its_tasks_and_its_own(
    site: Site, topic: Callable[..., str], s3: ObjectServer
) -> None:
    with RequestCounter(s3.url) as counter:
        bucket, name = s3.bucket(), topic(2, prefix="clicks")
        site.overrides = {"s3": {"endpoint": counter.url}, "http": {"port": 0}}
        site.pipeline("clicks", [name], table={"location": f"{bucket}/lake/clicks"})
        site.fill(name, RECORDS, broken=BROKEN)
        writer = site.start()
        writer.until(lambda: writer.committed_records() == RECORDS + BROKEN)
        text = scrape(site, "clicks")
        seen = counter.counts()
        found = scraped_requests(text)
        writer.stop()
    files = [key for key in s3.keys(f"{bucket}/lake") if key.endswith(".parquet") and "_delta_log" not in key]
    assert found["data", "put"] == len(files), "they were uploaded by processes of Spark"
    puts = sum(count for (_, kind), count in found.items() if kind == "put")
    assert puts <= seen["PUT"] <= puts + 2, "all but what came between the two looks"
    assert found["log", "get"] > 0
    assert not [word for word in (KEY, SECRET, bucket.removeprefix("s3://"), files[0]) if word in text]
