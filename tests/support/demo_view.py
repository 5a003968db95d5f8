"""What the demo shows of its pipelines."""

from datetime import timedelta

from writer.demo.panel import View

VIEW = View(
    "the writer runs",
    timedelta(seconds=83),
    total=200_000,
    produced=120_000,
    committed=85_000,
    rate_in=17_310,
    rate_out=9_870,
    lag=timedelta(seconds=2.1),
    commits=4,
    files=9,
    bytes=4_300_000,
    buckets=10,
    buckets_last=3,
    columns=33,
    rows=84_970,
    quarantined=12,
    dead_letters=18,
)
