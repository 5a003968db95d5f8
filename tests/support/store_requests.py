"""Requests to stores as a driver's metrics have them, beside what a server in Python saw."""

import json
from collections import Counter
from collections.abc import Mapping
from urllib.request import urlopen

from prometheus_client.parser import text_string_to_metric_families

from headrace.writer.storage.base import Store
from tests.servers.cloud_stores import AzureStore, GcsStore
from tests.support.writer_process import Site, Writer

# The methods by which a server counts, where a kind of request is not its own method.
_METHODS = {
    "gs": {
        "put": "PUT", "copy": "PUT", "list": "GET", "create_upload": "POST", "upload_part": "PUT",
        "complete_upload": "POST",
    },
    "az": {
        "put": "PUT", "copy": "PUT", "list": "GET", "delete": "POST", "upload_part": "PUT", "complete_upload": "PUT",
    },
}  # fmt: skip


def send_each_kind(store: Store) -> None:
    """Send each kind of request to an empty store: 3 put, 2 get, 1 head, 1 list, 2 copy, 3 delete.

    One put finds an object, one get and one delete find none.
    """
    store.put("a", b"1")
    assert store.put_if_absent("_delta_log/0.json", b"1")
    assert not store.put_if_absent("_delta_log/0.json", b"2")
    assert store.read("b") is None
    assert store.read("a") is not None
    assert store.mark("a") is not None
    assert set(store.list()) == {"a", "_delta_log/"}
    store.copy("a", "c")
    assert store.move("c", "d")
    store.delete("d")
    store.delete("d")


def by_method(cloud: str, kinds: Mapping[str, int]) -> Counter[str]:
    """Return requests by method. `cloud`: gs or az; `kinds`: requests by kind."""
    methods = _METHODS[cloud]
    counted = Counter[str]()
    for kind, count in kinds.items():
        counted[methods.get(kind, kind.upper())] += count
    return counted


def scrape(site: Site, pipeline: str) -> str:
    """Return the metrics of the driver of a pipeline."""
    driver = json.loads((site.root / "checkpoints" / pipeline / "driver.json").read_text())
    with urlopen(f"{driver['url']}/metrics", timeout=60) as response:
        return str(response.read().decode())


def scraped_requests(text: str) -> Counter[tuple[str, str]]:
    """Return requests by purpose and kind."""
    found = Counter[tuple[str, str]]()
    for family in text_string_to_metric_families(text):
        if family.name == "headrace_store_requests":
            for sample in family.samples:
                found[sample.labels["purpose"], sample.labels["kind"]] += int(sample.value)
    return found


def wait_for_equal_tally(
    cloud: str, server: GcsStore | AzureStore, before: Counter[str], site: Site, writer: Writer, pipeline: str
) -> Counter[tuple[str, str]]:
    """Wait until a driver has counted what the server saw since `before`. Returns requests by purpose and kind.

    A driver at work has requests on the way between the two looks. One that it never counts is missing for good.
    """
    seen: list[tuple[Counter[str], Counter[tuple[str, str]]]] = []

    def is_equal() -> bool:
        found = scraped_requests(scrape(site, pipeline))
        seen.append((server.asked - before, found))
        kinds = Counter[str]()
        for (_, kind), count in found.items():
            kinds[kind] += count
        return by_method(cloud, kinds) == seen[-1][0]

    try:
        writer.until(is_equal, 30)
    except AssertionError as error:
        asked, found = seen[-1]
        raise AssertionError(f"the server saw {asked}, the driver counted {found}") from error
    return seen[-1][1]
