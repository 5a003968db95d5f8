"""The page and what goes with it: what a browser is told, what it may run, and who is shown live records."""

import base64
import hashlib
import json
import re
import ssl
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import UTC, datetime, timedelta
from http.client import HTTPConnection, HTTPSConnection
from pathlib import Path
from urllib.parse import urlsplit

import pytest

from headrace.recovery.supervisor.endpoints import SupervisorStatus, supervisor_endpoints
from headrace.recovery.supervisor.pipeline_state import SupervisedPipeline
from headrace.writer.clients.driver_endpoint import ask_driver, this_driver
from headrace.writer.config.sections.bucket_upkeep import Seal
from headrace.writer.config.sections.connections import Http
from headrace.writer.core.errors import ConfigError
from headrace.writer.core.files import BucketFile, BucketKey
from headrace.writer.lease.holder import LeaseHolder
from headrace.writer.sealing.bucket_states import BucketState, ListedBucket, SealFacts, list_bucket
from headrace.writer.sealing.manifest import Manifest
from headrace.writer.sealing.rules import SealBlocked, SealDecision, SealLater, SealNow, Unsealed
from headrace.writer.sealing.unsealed import UnsealedIndex
from headrace.writer.sealing.watermark import Watermark
from headrace.writer.status.progress import Progress
from headrace.writer.web import http_server, live_records, page
from headrace.writer.web.endpoints import serving, starts
from headrace.writer.web.http_server import answering
from tests.servers.secured import Authority
from tests.support.sample_records import config

NOW = datetime(2026, 11, 20, 12, tzinfo=UTC)
HOUR = timedelta(hours=1)
TOKEN = "a-token-of-sixteen-or-more"
Headers = dict[str, str]


def ask(
    url: str, path: str, method: str = "GET", headers: Headers | None = None, context: ssl.SSLContext | None = None
) -> tuple[int, Headers, str]:
    address = urlsplit(url)
    if address.scheme == "https":
        connection: HTTPConnection = HTTPSConnection(address.netloc, timeout=60, context=context)
    else:
        connection = HTTPConnection(address.netloc, timeout=60)
    try:
        connection.request(method, path, headers=headers or {})
        answer = connection.getresponse()
        return answer.status, dict(answer.headers), answer.read().decode()
    finally:
        connection.close()


@pytest.fixture
def url() -> Iterator[str]:
    progress = Progress("clicks")
    bucket = ListedBucket(
        ("2026-11-20T05",), "hour=2026-11-20T05", NOW, NOW + HOUR, BucketState("sealed"),
        rows=7, files=1, bytes=100, late=2, version=1, manifest=None, late_elsewhere={},
    )  # fmt: skip
    progress.set(listed_buckets=(bucket,))
    progress.set(
        recovery=({"at": "2026-11-20T12:00:00+00:00", "verdict": "killed", "reason": "x", "from": "a", "to": "L1"},)
    )
    with serving(Http(port=0), {"clicks": progress}) as found:
        assert found is not None
        yield found


# --- the page ----------------------------------------------------------------------------------------------------


def test_a_browser_is_shown_the_page_and_a_script_the_paths(url: str) -> None:
    status, headers, body = ask(url, "/", headers={"Accept": "text/html,application/xhtml+xml"})
    assert (status, headers["Content-Type"]) == (200, "text/html; charset=utf-8")
    assert body.startswith("<!doctype html>")
    assert ask(url, "/", headers={"Accept": "*/*"})[2].endswith("/buckets\n")


def test_the_figures_that_the_page_draws_are_served_as_json(url: str) -> None:
    told = json.loads(ask(url, "/buckets")[2])["pipelines"]["clicks"]
    assert told == [
        {
            "bucket": "hour=2026-11-20T05", "start": "2026-11-20T12:00:00.000Z", "end": "2026-11-20T13:00:00.000Z",
            "state": "sealed", "rows": 7, "late": 2, "version": 1, "why": "",
        }
    ]  # fmt: skip
    assert json.loads(ask(url, "/status")[2])["pipelines"]["clicks"]["recovery"][0]["to"] == "L1"


def test_the_policy_lets_the_one_script_and_the_one_style_run_and_nothing_else(url: str) -> None:
    _, headers, body = ask(url, "/", headers={"Accept": "text/html"})
    policy = dict(part.split(" ", 1) for part in headers["Content-Security-Policy"].split("; "))
    for tag, rule in (("script", "script-src"), ("style", "style-src")):
        (inside,) = re.findall(rf"<{tag}>(.*?)</{tag}>", body, re.DOTALL)
        digest = base64.b64encode(hashlib.sha256(inside.encode()).digest()).decode()
        assert policy[rule] == f"'sha256-{digest}'"
    assert (policy["default-src"], policy["connect-src"], policy["frame-ancestors"]) == ("'none'", "'self'", "'none'")
    assert not re.search(r"\son\w+=|style=|javascript:", body), "nothing that the policy would forbid"


def test_the_page_takes_nothing_from_elsewhere_and_reads_no_markup() -> None:
    text = page.content().decode()
    assert re.findall(r"(?:src|href)=\"(?!data:|[a-z]+\")", text) == []
    addresses = set(re.findall(r"https?://[^\s'\"]+", text))
    assert addresses == {"http://www.w3.org/2000/svg"}, "the name of SVG is no address"
    for word in ("innerHTML", "outerHTML", "insertAdjacentHTML", "document.write", "eval(", "new Function", "srcdoc"):
        assert word not in text, word


@pytest.mark.parametrize("path", ["/", "/status", "/metrics", "/healthz", "/buckets", "/records", "/nothing"])
def test_no_answer_is_kept_guessed_at_framed_or_told_to_others(url: str, path: str) -> None:
    _, headers, _ = ask(url, path)
    assert {name: headers[name] for name in http_server.HEADERS} == dict(http_server.HEADERS)
    assert "Access-Control-Allow-Origin" not in headers
    assert headers["Server"] == "headrace"


# --- one bucket on it --------------------------------------------------------------------------------------------


def file(rows: int | None = 10) -> BucketFile:
    return BucketFile("x.parquet", ("2026-11-20T05",), rows, 100)


def unsealed(**about: object) -> Unsealed:
    given = {"bucket": ("2026-11-20T05",), "start": NOW, "end": NOW + HOUR, "changed": NOW, **about}
    return Unsealed(**given)  # type: ignore[arg-type]


def manifest(late: int) -> Manifest:
    return Manifest(
        pipeline="clicks", table="/lake", columns=("hour",), bucket=("2026-11-20T05",), start=NOW, end=NOW + HOUR,
        version=3, rows=10, files=1, bytes=100, event_time_min=NOW, event_time_max=NOW, late=late, deduped=0, added=0,
        reason="watermark", with_gap=False, sealed_at=NOW, log_position=7,
    )  # fmt: skip


KEY: BucketKey = ("2026-11-20T05",)


@pytest.mark.parametrize(
    ("bucket", "decision", "newest", "shown"),
    [
        (unsealed(), None, None, ("open", 0, 0)),
        (unsealed(late=2, added=20), SealNow(KEY), None, ("closed", 2, 0)),
        (unsealed(), SealBlocked(KEY, "a gap"), None, ("blocked", 0, 0)),
        (unsealed(sealed=3, late=2), SealLater(KEY, NOW), manifest(5), ("reopened", 7, 3)),
        (None, None, manifest(5), ("sealed", 5, 3)),
        (None, None, None, ("sealed", None, None)),
    ],
)
def test_a_bucket_is_shown_as_the_log_has_it(
    bucket: Unsealed | None,
    decision: SealDecision | None,
    newest: Manifest | None,
    shown: tuple[str, int | None, int | None],
) -> None:
    index = UnsealedIndex("table", 7, {KEY: bucket} if bucket else {})
    decisions = {KEY: decision} if decision else {}
    facts = SealFacts(Seal(), NOW + HOUR, Watermark(None), index, decisions)
    listed = list_bucket(facts, ("hour",), KEY, (NOW, NOW + HOUR), [file(), file()], newest)
    assert (listed.state.name, listed.late, listed.version) == shown
    assert (listed.rows, listed.files, listed.bytes) == (20, 2, 200)
    assert list_bucket(facts, ("hour",), KEY, None, [file(), file(None)], newest).rows is None


# --- live records ------------------------------------------------------------------------------------------------


@contextmanager
def showing(tmp_path: Path, **http: object) -> Iterator[str]:
    settings = config(tmp_path).model_copy(update={"http": Http.model_validate({"port": 0, **http})})
    with serving(settings.http, {"clicks": Progress("clicks")}, guarded=live_records.record_guard(settings)) as found:
        assert found is not None
        yield found


def bearer(token: str) -> Headers:
    return {"Authorization": f"Bearer {token}"}


def test_live_records_are_off_unless_they_are_switched_on(tmp_path: Path) -> None:
    for given in ({}, {"token": TOKEN}):
        with showing(tmp_path, **given) as found:
            assert ask(found, "/records?pipeline=clicks", headers=bearer(TOKEN))[0] == 404
            assert ask(found, "/records?pipeline=clicks", headers=bearer(""))[0] == 404


def test_live_records_are_shown_only_with_the_token(tmp_path: Path) -> None:
    with showing(tmp_path, expose_records=True, token=TOKEN) as found:
        for headers in ({}, bearer(""), bearer("wrong"), {"Authorization": TOKEN}, bearer(TOKEN + " ")):
            assert ask(found, "/records?pipeline=clicks", headers=headers)[0] == 403
        assert ask(found, f"/records?pipeline=clicks&token={TOKEN}")[0] == 403, "a URL is written into logs"
        status, _, body = ask(found, "/records?pipeline=clicks", headers=bearer(TOKEN))
        assert status == 502
        assert "no Kafka broker answers" in body, "it was asked"


@pytest.mark.parametrize(
    ("query", "status"),
    [("pipeline=views", 404), ("", 404), ("pipeline=clicks&at=staged", 400), ("pipeline=clicks&at=../x", 400),
     ("pipeline=clicks&records=51", 400), ("pipeline=clicks&records=0", 400), ("pipeline=clicks&records=-1", 400)],
)  # fmt: skip
def test_a_request_that_is_no_question_is_refused(tmp_path: Path, query: str, status: int) -> None:
    with showing(tmp_path, expose_records=True, token=TOKEN) as found:
        assert ask(found, f"/records?{query}", headers=bearer(TOKEN))[0] == status


def test_one_looks_at_records_at_a_time(tmp_path: Path) -> None:
    with showing(tmp_path, expose_records=True, token=TOKEN) as found:
        statuses: list[int] = []

        def look() -> None:
            statuses.append(ask(found, "/records?pipeline=clicks", headers=bearer(TOKEN))[0])

        threads = [threading.Thread(target=look) for _ in range(4)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert set(statuses) == {429, 502}
        assert ask(found, "/records?pipeline=clicks", headers=bearer(TOKEN))[0] == 502, "and then the next one"


# --- what changes something --------------------------------------------------------------------------------------

PATHS = [
    "/", "/status", "/metrics", "/healthz", "/readyz", "/buckets", "/records", "/records?pipeline=clicks", "/scale",
    "/pipelines/clicks/start", "/pipelines/clicks/start?new_run=true", "/pipelines/clicks/stop",
]  # fmt: skip
METHODS = ["POST", "PUT", "DELETE", "PATCH", "OPTIONS"]


@pytest.mark.parametrize("method", METHODS)
@pytest.mark.parametrize("surface", ["driver", "supervisor"])
def test_without_the_token_nothing_is_changed_over_either_surface(tmp_path: Path, surface: str, method: str) -> None:
    done: list[tuple[object, ...]] = []
    progress = Progress("clicks")
    progress.record_failure("the disk is full")
    board, settings = {"clicks": progress}, config(tmp_path)
    ward = SupervisorStatus(lambda: {"clicks": SupervisedPipeline("clicks")}, LeaseHolder({}, "me"), lambda: False)
    served = (
        serving(
            Http(port=0),
            board,
            starts(board, "secret", lambda *given: done.append(given)),
            live_records.record_guard(settings),
        )
        if surface == "driver"
        else answering(Http(port=0), supervisor_endpoints(ward), section="supervisor")
    )
    with served as found:
        assert found is not None
        for path in PATHS:
            for headers in ({}, bearer(""), bearer("wrong"), bearer(TOKEN)):
                status, _, _ = ask(found, path, method, headers)
                assert status in (403, 404, 501), (method, path)
        assert done == []
        if surface == "driver" and method == "POST":
            assert ask(found, "/pipelines/clicks/start", "POST", bearer("secret"))[0] == 202
            assert done == [("clicks", False, None)]


@pytest.mark.parametrize(
    ("host", "status"),
    [("127.0.0.1:9643", 200), ("localhost", 200), ("LOCALHOST:9643", 200), ("[::1]:9643", 200),
     ("evil.example:9643", 421), ("127.0.0.1.evil.example", 421), ("localhost.evil.example", 421), ("[::1", 421)],
)  # fmt: skip
def test_a_site_whose_name_leads_to_this_machine_reads_nothing(url: str, host: str, status: int) -> None:
    """What a browser sends that a name server of somebody else's has led here."""
    assert ask(url, "/status", headers={"Host": host})[0] == status
    assert ask(url, "/pipelines/clicks/start", "POST", {"Host": host})[0] == (501 if status == 200 else 421)


def test_a_driver_that_listens_for_other_machines_is_asked_by_any_name() -> None:
    with serving(Http(host="0.0.0.0", port=0), {}) as found:
        assert found is not None
        assert ask(found, "/status", headers={"Host": "headrace.analytics.svc:9643"})[0] == 200


# --- HTTPS -------------------------------------------------------------------------------------------------------


def test_a_client_on_this_machine_knows_the_driver_by_its_certificate(tmp_path: Path) -> None:
    authority = Authority(tmp_path)
    mine, other = authority.certificate("driver"), authority.certificate("other")
    progress = Progress("clicks")
    progress.record_start(epoch=3, run=1, frontier={}, limits={}, buckets=[], recent=[])
    with serving(Http(port=0, certificate=mine.certificate, key=mine.key), {"clicks": progress}) as found:
        assert found is not None
        assert found.startswith("https://127.0.0.1:")
        assert ask_driver(this_driver(found, 3, str(mine.certificate)), "clicks") is not None
        assert ask_driver(this_driver(found, 3, str(other.certificate)), "clicks") is None, (
            "of the same authority, and another one"
        )
        assert ask_driver(this_driver(found, 3), "clicks") is None, "an authority that nobody knows"
        assert ask_driver(this_driver(found, 3, str(tmp_path / "none.pem")), "clicks") is None
        assert ask_driver(this_driver(found.replace("https", "http"), 3), "clicks") is None, "it speaks no HTTP"
        trusting = ssl.create_default_context(cafile=str(authority.ca))
        assert ask(found, "/healthz", context=trusting)[0] == 200
        old = ssl.create_default_context(cafile=str(authority.ca))
        old.maximum_version = ssl.TLSVersion.TLSv1_2
        old.minimum_version = ssl.TLSVersion.TLSv1_2
        assert ask(found, "/healthz", context=old)[0] == 200


def test_files_that_are_no_certificate_are_refused_with_the_mend(tmp_path: Path) -> None:
    (tmp_path / "x.pem").write_text("nothing")
    wrong = Http(port=0, certificate=tmp_path / "x.pem", key=tmp_path / "y.key")
    with pytest.raises(ConfigError, match=r"http\.certificate .*x\.pem.* cannot be served"), serving(wrong, {}):
        pass
