"""The page that a driver shows, in a real browser: a real driver under its supervisor, and what Chromium makes of it.

HEADRACE_PICTURES names a folder for pictures of it, as `make page-picture` does.
"""

import json
import os
import re
import signal
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from datetime import UTC, datetime
from functools import partial
from pathlib import Path
from typing import Any
from urllib.parse import quote

import psutil
import pytest

from headrace.writer.demo.devstack.events import SCHEMAS, encoder, generate, produce
from headrace.writer.demo.devstack.value_encoding import AvroEncoding
from tests.support.browser import Browser, browser
from tests.support.cluster_driver import on_cluster, scale
from tests.support.supervisor_process import Supervised, supervise
from tests.support.writer_process import Site

pytestmark = [pytest.mark.slow, pytest.mark.engines, pytest.mark.timeout(900)]
MakeTopic = Callable[..., str]
TOKEN = "a-token-that-only-this-test-knows"
HOSTILE = "</script><img src=x onerror=\"document.title='taken'\">/../../etc"
ROUND = "Number(document.documentElement.dataset.round || 0)"


@contextmanager
def supervised(site: Site) -> Iterator[Supervised]:
    running = supervise(site)
    try:
        yield running
    finally:
        if running.process.poll() is None:
            running.kill()


def url(site: Site) -> str:
    return str(json.loads((site.root / "checkpoints" / "clicks" / "driver.json").read_text())["url"])


def hostile(site: Site, topic: str, count: int) -> None:
    """Events whose country is what somebody writes who wants the page to run it."""
    messages = site.values(topic, 1, kind="clicks")  # its schema is registered
    encode = encoder(SCHEMAS["clicks"], int.from_bytes(messages[0][1][1:5], "big"))
    records = generate("clicks", count, now=datetime.now(UTC), hours=1, seed=3)
    site.send(topic, [(HOSTILE.encode(), encode({**record, "country": HOSTILE})) for _, record in records])


def folders(root: Path) -> set[str]:
    return {path.name for path in root.iterdir() if path.name.startswith("country=")}


def settled(page: Browser) -> None:
    """Wait until the page has drawn what it is told now."""
    seen = page.find(ROUND)
    page.until(f"{ROUND} >= {seen + 2}")


def text(page: Browser, selector: str) -> str:
    return str(page.find(f"document.querySelector({json.dumps(selector)}).innerText"))


def count(page: Browser, selector: str) -> int:
    return int(page.find(f"document.querySelectorAll({json.dumps(selector)}).length"))


def more(site: Site, n: int, *, hours: int = 1, seed: int, broken: int = 0) -> None:
    """Events of now and the hours before, some of whose hours may be sealed by now."""
    (topic,) = site.pipelines["clicks"]["topics"]
    produce(
        site.bootstrap, AvroEncoding(site.registry_url), topic, n, now=datetime.now(UTC), kind="clicks", hours=hours,
        seed=seed, broken=broken,
    )  # fmt: skip


@pytest.fixture
def lived(site: Site, topic: MakeTopic) -> Iterator[Supervised]:
    """A driver that has sealed buckets, got late rows, bad records and hostile ones, and was killed once."""
    clicks, countries = topic(4, prefix="clicks"), topic(1, prefix="countries")
    site.pipeline(
        "clicks", [clicks], commit={"max_delay": "15 s"}, compact={"at_seal": False},
        seal={"out_of_orderness": "10 min", "allowed_lateness": "0 s", "reopen_after": "1 h"},
    )  # fmt: skip
    site.pipeline(
        "countries", [countries], commit={"max_delay": "3 s"}, bucket={"type": "field", "field": "country"}, seal={}
    )
    site.overrides["http"] = {"port": 0, "expose_records": True, "token": TOKEN}
    site.overrides["kafka"] = {"bootstrap_servers": site.bootstrap, "lag_interval": "1 s"}

    more(site, 60_000, hours=100, seed=1, broken=23)
    hostile(site, countries, 50)
    with supervised(site) as running:
        running.until(lambda: running.times("bucket_sealed") > 0)
        more(site, 14, hours=60, seed=2)
        more(site, 9_000, seed=4, broken=4)
        running.until(lambda: running.times("batch_committed pipeline=clicks") > 1)
        psutil.Process(running.drivers()[-1]).send_signal(signal.SIGKILL)
        running.until(lambda: len(running.recoveries()) >= 2)
        more(site, 2_500, seed=5)
        yield running
        assert running.stop() == 0, running.output()


def test_a_person_sees_all_of_it_at_a_glance_and_nothing_told_is_run(
    lived: Supervised, site: Site, tmp_path: Path
) -> None:
    with browser(tmp_path / "profile") as page:
        page.look(1280)
        page.open(url(site))
        lived.until(lambda: count(page, "#pipeline-clicks .cell.sealed") > 50 and count(page, ".cell.reopened") > 0)
        settled(page)
        sees_what_is_told(page)
        sees_what_was_decided(page)
        records_need_the_token(page)
        narrow_and_dark(page, tmp_path, partial(more, site))
        assert page.find("document.title") == "headrace: clicks, countries"
        assert count(page, "img, iframe, object, embed") == 0
        refusal = "Failed to load resource: the server responded with a status of 403 (Forbidden)"
        assert page.complaints() == [refusal], "of the wrong token, and nothing else"
        assert all(address.startswith((url(site), "data:")) for address in page.requested_urls())


def sees_what_is_told(page: Browser) -> None:
    page.until(
        "fetch('buckets').then((a) => a.json()).then((t) => t.pipelines.clicks.every((c) => c.late !== null))", 200
    )
    page.until("document.querySelectorAll('#pipeline-clicks .commits tbody tr').length > 0", 120)
    settled(page)
    pipeline_document: dict[str, Any] = page.find("fetch('status').then((a) => a.json())")["pipelines"]["clicks"]
    cells = page.find("fetch('buckets').then((a) => a.json())")["pipelines"]
    assert text(page, "#pipeline-clicks .pill") == "running"
    assert count(page, "#pipeline-clicks .partitions tbody tr") == len(pipeline_document["lag"]["partitions"]) == 4
    assert count(page, "#pipeline-clicks .commits tbody tr") == len(pipeline_document["commits"]) > 0
    assert sum(cell["rows"] for cell in cells["clicks"]) > 60_000
    assert {"open", "sealed", "reopened"} <= {cell["state"] for cell in cells["clicks"]}
    assert sum(cell["late"] for cell in cells["clicks"]) > 0
    assert count(page, "#pipeline-clicks .cell") == len({cell["start"] for cell in cells["clicks"]})
    assert count(page, "#pipeline-clicks .cell.late") > 0
    page.find("document.querySelector('#pipeline-clicks .cell.reopened').click()")
    assert "reopened" in text(page, "#pipeline-clicks .detail")
    assert re.search(r" late; rows came after it was sealed", text(page, "#pipeline-clicks .detail"))
    chip = text(page, "#pipeline-countries .chips .cell")
    tile = "[...document.querySelectorAll('#pipeline-clicks .tile')].find((t) => t.firstChild.textContent == '{}')"
    texts = {name: page.find(f"{tile.format(name)}.innerText.split('\\n')") for name in ("dead letters", "arriving")}
    bad, quarantined = (pipeline_document["totals"]["records"][name] for name in ("dead_letters", "quarantined"))
    since_start = (
        f"{bad} and {quarantined} quarantined since the start" if bad + quarantined else "none since the start"
    )
    held = str(pipeline_document["table"]["dead_letters"])
    rows, note = texts["dead letters"][1:3]
    # A commit may have come since they were counted.
    assert (rows, re.sub(r", counted [^;]+ ago", "", note)) == (held, f"in their table; {since_start}")
    assert texts["arriving"][2].startswith("committed "), texts
    assert ", mean of 60 s" in texts["arriving"][2]
    assert f"country_bucket={quote(HOSTILE, safe='')}" in chip, "as text, named as its folder"


def sees_what_was_decided(page: Browser) -> None:
    texts = text(page, "#pipeline-clicks .decisions.recovery")
    assert "running → L1" in texts, texts
    assert "recovered" in texts
    assert "L1 → running" in texts


def records_need_the_token(page: Browser) -> None:
    def look(token: str) -> None:
        page.find(
            "{ const d = document.querySelector('#pipeline-countries details'); d.open = true;"
            f"d.querySelector('input').value = {json.dumps(token)}; d.querySelector('button').click() }}"
        )

    selector = "#pipeline-countries details p"
    look("wrong" * 5)
    page.until(f"document.querySelector('{selector}').innerText.includes('http.token')")
    assert count(page, "#pipeline-countries details li") == 0
    look(TOKEN)
    page.until("document.querySelectorAll('#pipeline-countries details li').length === 10", 120)
    assert "onerror" in text(page, "#pipeline-countries details li pre")


def narrow_and_dark(page: Browser, scratch: Path, more: Callable[..., None]) -> None:
    pictures = Path(os.environ.get("HEADRACE_PICTURES") or scratch)
    page.find("document.querySelector('#pipeline-countries details').open = false")
    for width, dark in ((1280, False), (1280, True), (400, False)):
        page.look(width, dark=dark)
        more(900 + width, seed=width + dark)  # it waits for commit.max_delay while the picture is taken
        page.until("document.querySelector('#pipeline-clicks .partitions h3').innerText.includes('skew')")
        assert page.find("document.documentElement.scrollWidth") == width, "nothing sticks out"
        shows_how_much_and_how_long(page)
        name = f"page{'-dark' if dark else ''}{'-400' if width == 400 else ''}.png"
        page.picture(pictures / name, until="#pipeline-countries")


def shows_how_much_and_how_long(page: Browser) -> None:
    """Files and duration of a commit, and the scale of the curves, at each width."""
    shown = "[...document.querySelectorAll('#pipeline-clicks .commits th')].filter((e) => e.offsetWidth)"
    assert {"files", "took"} <= set(page.find(f"{shown}.map((e) => e.innerText)"))
    table = "document.querySelector('#pipeline-clicks .commits .scroll')"
    assert page.find(f"{table}.scrollWidth <= {table}.clientWidth"), "no column is cut"
    lines = (
        "[...document.querySelectorAll('#pipeline-clicks .commits td.reason')].map((e) => {"
        "const all = document.createRange(); all.selectNodeContents(e); return all.getClientRects().length })"
    )
    assert set(page.find(lines)) == {1}, "a reason is one word on one line"
    scales = page.find("[...document.querySelectorAll('#pipeline-clicks .tile .scale')].map((e) => e.innerText)")
    assert len(scales) == 2
    assert re.fullmatch(r"0 to [\d.]+[KM]? offsets, last [\d.]+ (s|min)", scales[0]), scales
    assert re.fullmatch(r"0 to [\d.]+[KM]?/s, last [\d.]+ (s|min)", scales[1]), scales


def test_a_person_sees_what_was_decided_of_executors_and_why_beside_what_recovery_did(
    site: Site, topic: MakeTopic, tmp_path: Path
) -> None:
    """A client with the token may send any reason: it is inserted as text."""
    name, panel = topic(1), "#pipeline-clicks .decisions.autoscaler"
    site.pipeline("clicks", [name], commit={"max_delay": "1 s"})
    on_cluster(site, "local-cluster[2,1,1024]", max_executors=2)
    site.fill(name, 100)
    with supervised(site) as running, browser(tmp_path / "profile") as page:
        running.until(lambda: running.times("executor_added") == 2 and running.times("batch_committed") > 0, 240)
        page.look(1280)
        page.open(url(site))
        page.until("document.querySelectorAll('.commits tbody tr').length > 0")
        assert count(page, panel) == 0, "there is no decision yet"
        assert scale(url(site), 2, token="wrong", decision="up", reason="never shown")[0] == 403
        assert scale(url(site), 1, decision="down", reason=f"1 is enough. {HOSTILE}")[0] == 202
        page.until(f"document.querySelector('{panel} h3')?.innerText.includes('1 registered; 1 requested')", 120)
        assert scale(url(site), 1, decision="wait", reason="1 executor stays, then 2.", recommended=2)[0] == 202
        page.until(f"document.querySelectorAll('{panel} li').length === 2")
        assert text(page, f"{panel} h3").endswith("1 registered; 1 requested, 2 recommended")
        newest, first = str(page.find(f"[...document.querySelectorAll('{panel} li')].map((e) => e.innerText)"
                                      ".join('\\0')")).split("\0")  # fmt: skip
        assert newest.startswith("wait "), newest
        assert newest.endswith(", 1\n1 executor stays, then 2."), newest
        assert first.endswith(f", 1\n1 is enough. {HOSTILE}"), first
        assert "never shown" not in page.find("document.body.innerText")
        psutil.Process(running.drivers()[-1]).send_signal(signal.SIGKILL)
        site.fill(name, 100, seed=8)
        running.until(running.recoveries, 240)
        page.open(url(site))  # the new driver's
        assert scale(url(site), 2, decision="up", reason="1 executor becomes 2, at once.")[0] == 202
        page.until(f"document.querySelector('{panel} li')?.innerText.includes('1 → 2')", 120)
        page.until("document.querySelector('#pipeline-clicks .decisions.recovery')?.innerText.includes('L1 → running')")
        assert "running → L1" in text(page, "#pipeline-clicks .decisions.recovery")
        assert (page.find("document.title"), count(page, "img")) == ("headrace: clicks", 0)
        assert running.stop() == 0, running.output()


def test_a_page_whose_driver_is_gone_says_so_and_how_old_it_is(site: Site, topic: MakeTopic, tmp_path: Path) -> None:
    name = topic(1)
    site.pipeline("clicks", [name], commit={"max_delay": "1 s"})
    site.fill(name, 100)
    writer = site.start()
    try:
        writer.until(lambda: writer.commits() > 0)
        with browser(tmp_path / "profile") as page:
            page.look(1280)
            page.open(url(site))
            page.until("document.querySelectorAll('.commits tbody tr').length > 0")
            assert page.find("document.getElementById('silent').hidden") is True
            assert page.find("fetch('records?pipeline=clicks').then((a) => a.status)") == 404, "it is switched off"
            assert writer.stop()
            page.until("document.getElementById('silent').innerText.includes(' old')")
            assert count(page, ".commits tbody tr") > 0, "what was told stays"
    finally:
        if writer.process.poll() is None:
            writer.kill()
