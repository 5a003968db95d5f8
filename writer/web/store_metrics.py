"""The metrics of requests to object stores. They are of the process: its pipelines share them."""

from collections.abc import Mapping

from headrace.writer.storage.requests.counts import RequestTally
from headrace.writer.web.metric_types import Metric, Reading, Value, Window

REQUESTS = "headrace_store_requests_total"
WAIT = "headrace_store_budget_wait_seconds_total"

STORE_METRICS: tuple[Metric[Reading], ...] = (
    Metric(
        REQUESTS,
        "Requests to object stores, each try counted: those of the driver's own client, and those of its tasks as "
        "their reports come. store: s3, gs, az, abfss. purpose: data (files of tables), log (Iceberg's metadata, too), "
        "checkpoint, lease, other. "
        "kind: get, head, put, list, copy, delete; create_upload, upload_part, complete_upload. outcome: ok, missing "
        "(no such object), exists (none was created), throttled (429, 503), failed (other errors), unanswered. A data "
        "file is one put below 10 MiB, else its parts and 2, of Azure its parts and 1; for S3 that is reckoned from "
        "its size. On Google's and Azure's stores a list has a request for each 1,000 or 5,000 names, and all that "
        "reads and writes data files and Iceberg's metadata is in it, but for what obstore tries again by itself: "
        "parts of an upload, unless it is given up, and pages of a list of which a later one was throttled. Not known "
        "are requests of delta-rs and Spark, on S3 those of PyIceberg and of reads of data files, and those of tasks "
        "that ended without a report. A table on a disk has none.",
        "requests",
        Window.SINCE_PROCESS,
        lambda _: [],
        ("store", "purpose", "kind", "outcome"),
    ),
    Metric(
        WAIT,
        "Seconds for which requests waited for the budget of their table, over all threads: by "
        "requests_per_second, or because the store throttled.",
        "seconds",
        Window.SINCE_PROCESS,
        lambda _: [],
        ("store",),
    ),
)


def read_store_metrics(tally: RequestTally) -> Mapping[str, list[Value]]:
    """Return the values of the metrics by their names."""
    return {
        REQUESTS: [(tuple(request), float(count)) for request, count in sorted(tally.requests.items())],
        WAIT: [((store,), seconds) for store, seconds in sorted(tally.waited_s.items())],
    }
