"""Requests are counted by what they are and what became of them; their keys are in no count."""

import threading
import time
from collections.abc import Callable
from datetime import timedelta
from typing import Any

import pytest
from hypothesis import given, strategies as st
from prometheus_client.parser import text_string_to_metric_families

from headrace.writer.batch.task_report import Report
from headrace.writer.commit.builder import merge_reports
from headrace.writer.core.files import staged_name
from headrace.writer.storage.base import StoreError, Unanswered
from headrace.writer.storage.bucket_store import BucketStore, ObjectFacts, Page
from headrace.writer.storage.requests.budget import RequestBudget, budget_of, table_prefix
from headrace.writer.storage.requests.counts import (
    KINDS,
    OUTCOMES,
    PART_BYTES,
    PURPOSES,
    REQUEST_COUNTS,
    Request,
    RequestTally,
    list_requests,
    purpose_of,
    upload_requests,
)
from headrace.writer.storage.requests.failures import FailureKind, RequestFailed
from headrace.writer.web.metrics_export import exposition

LOCATION = "s3://canary-bucket/canary-table"
FACTS = ObjectFacts(("etag", 1), "token", 1)


class Client:
    """Answers each request with the next of the failures that it was given, then with success."""

    counts_files = False
    may_copy_later = False

    def __init__(self, *failures: RequestFailed | None) -> None:
        self.failures = list(failures)
        self.sent_at = list[float]()
        self.repeats = list[bool]()

    def _answer(self, answer: Any = None) -> Any:
        self.sent_at.append(time.monotonic())
        failure = self.failures.pop(0) if self.failures else None
        if failure is not None:
            raise failure
        return answer

    def get(self, *_: object) -> tuple[bytes, ObjectFacts]:
        return self._answer((b"content", FACTS))

    def head(self, *_: object) -> ObjectFacts:
        return self._answer(FACTS)

    def put(self, *_: object, **__: bool) -> None:
        self._answer()

    def list_page(self, _: str, continuation: str | None, *, repeats: bool = False) -> Page:
        self.repeats.append(repeats)
        if continuation is None:
            return self._answer(Page(["a"], "next"))
        return self._answer(Page([f"{number}" for number in range(2_500)], requests=3))

    def copy(self, *_: object) -> None:
        self._answer()

    def delete(self, *_: object) -> None:
        self._answer()

    def files(self, _: object) -> Any:
        raise AssertionError


def store(client: Client, location: str = LOCATION, retry_s: float = 5, per_s: float | None = None) -> BucketStore:
    return BucketStore(location, client, timedelta(seconds=retry_s), "s3.retry_timeout", per_s)


def counted(call: Callable[[], object]) -> dict[tuple[str, str, str], int]:
    """Return purpose, kind and outcome of what a call sends."""
    REQUEST_COUNTS.take()
    call()
    tally = REQUEST_COUNTS.take()
    for request in tally.requests:
        assert request.store == "s3"
        assert request.purpose in PURPOSES
        assert request.kind in KINDS
        assert request.outcome in OUTCOMES
    return {request[1:]: count for request, count in tally.requests.items()}


def failure(status: int = 0, **more: Any) -> RequestFailed:
    return RequestFailed("an answer", "A fix.", status=status, **more)


def test_each_try_of_a_request_is_counted_with_its_outcome():
    slow_down = failure(503, may_pass=True, may_have_worked=True)
    silence = failure(may_pass=True, may_have_worked=True)
    of_log = "_delta_log/00000000000000000007.json"
    throttled = store(Client(slow_down, silence), f"{LOCATION}-throttled")
    assert counted(lambda: throttled.put_if_absent(of_log, b"entry")) == {
        ("log", "put", "throttled"): 1,
        ("log", "put", "unanswered"): 1,
        ("log", "put", "ok"): 1,
    }
    taken = store(Client(failure(412, kind=FailureKind.OBJECT_EXISTS)))
    assert counted(lambda: taken.put_if_absent(of_log, b"entry")) == {("log", "put", "exists"): 1}
    missing = store(Client(*(failure(404, kind=FailureKind.NO_OBJECT) for _ in range(3))))
    assert counted(lambda: (missing.read("12/offsets/3"), missing.mark("_lease/4"))) == {
        ("checkpoint", "get", "missing"): 1,
        ("lease", "head", "missing"): 1,
        ("lease", "get", "missing"): 1,
    }

    def refused() -> None:
        with pytest.raises(StoreError):
            store(Client(failure(403))).delete("day=1/a.parquet")

    assert counted(refused) == {("data", "delete", "failed"): 1}
    assert counted(lambda: store(Client()).move("a.parquet", "b.parquet")) == {
        ("data", "copy", "ok"): 1,
        ("data", "delete", "ok"): 1,
    }


def test_a_page_that_a_client_puts_together_counts_as_those_that_it_asked_for():
    assert counted(lambda: list(store(Client()).list("_headrace/sealed"))) == {("other", "list", "ok"): 1 + 3}


def test_a_list_of_which_a_later_page_was_throttled_is_repeated_page_by_page():
    slow_down = failure(503, may_pass=True)
    later = failure(503, may_pass=True, is_later_page=True)
    client = Client(slow_down, later)
    assert counted(lambda: list(store(client, f"{LOCATION}-pages").list("a"))) == {
        ("other", "list", "throttled"): 2,
        ("other", "list", "ok"): 1 + 3,
    }
    assert client.repeats == [False, False, True, True]


@given(names=st.integers(0, 50_000), page=st.sampled_from([1_000, 5_000]))
def test_the_pages_of_a_list_hold_all_its_names(names, page):
    requests = list_requests(names, page)
    assert requests * page >= names
    assert requests == 1 or (requests - 1) * page < names


@given(size=st.integers(0, 2**31), store_name=st.sampled_from(["s3", "gs", "az", "abfss"]))
def test_the_parts_of_an_upload_hold_all_its_bytes(size, store_name):
    requests = upload_requests(store_name, size)
    parts = requests.get("upload_part", 0)
    assert (requests == {"put": 1}) == (size < PART_BYTES) == (parts == 0)
    assert parts * PART_BYTES >= size or not parts
    assert not parts or (parts - 1) * PART_BYTES < size
    assert requests.get("complete_upload", 0) == (parts > 0)
    # Azure's parts need no beginning.
    assert requests.get("create_upload", 0) == (parts > 0 and store_name not in ("az", "abfss"))
    assert set(requests) <= set(KINDS)


@pytest.mark.parametrize(
    ("size", "requests"),
    [
        (0, {"put": 1}),
        (10 * 2**20 - 1, {"put": 1}),
        (10 * 2**20, {"create_upload": 1, "upload_part": 1, "complete_upload": 1}),
        (128 * 2**20, {"create_upload": 1, "upload_part": 13, "complete_upload": 1}),
    ],
)
def test_an_upload_is_reckoned_by_its_size(size, requests):
    assert upload_requests("s3", size) == requests
    assert counted(lambda: store(Client()).note_upload("day=1/a.parquet", size)) == {
        ("data", kind, "ok"): count for kind, count in requests.items()
    }
    assert upload_requests("gs", size) == requests
    if "create_upload" in requests:
        requests = {kind: count for kind, count in requests.items() if kind != "create_upload"}
    assert upload_requests("az", size) == requests


def test_an_upload_that_its_file_system_has_counted_is_not_counted_again():
    client = Client()
    client.counts_files = True
    assert counted(lambda: store(client).note_upload("day=1/a.parquet", 2**25)) == {}


@pytest.mark.parametrize(
    ("path", "purpose"),
    [
        (f"{LOCATION}/_delta_log", "log"),
        (f"{LOCATION}/_headrace/log/1.json", "log"),
        (f"{LOCATION}/_delta_log/1.checkpoint.parquet", "log"),
        (f"{LOCATION}/day=1/a.parquet", "data"),
        (f"{LOCATION}/{staged_name('day=1/a.parquet')}", "data"),
        (f"{LOCATION}/metadata/00007-1.metadata.json", "log"),
        (f"{LOCATION}/metadata/snap-7.avro", "log"),
        (f"{LOCATION}/metadata/a.parquet", "data"),
        ("s3://lake/checkpoints/clicks/_lease/3.beat", "lease"),
        ("s3://lake/checkpoints/clicks/7/commits/3", "checkpoint"),
        (f"{LOCATION}/_headrace/pause.json", "other"),
    ],
)
def test_the_purpose_of_a_request_comes_from_the_folder(path, purpose):
    assert purpose_of(path) == purpose


@pytest.mark.parametrize("folder", ["", "/_delta_log", "/_headrace/log", "/_headrace/ledger/1"])
def test_all_stores_of_a_table_share_a_budget(folder):
    assert table_prefix(f"{LOCATION}{folder}") == LOCATION
    assert budget_of(f"{LOCATION}{folder}", 7) is budget_of(LOCATION, 7)
    assert budget_of(f"{LOCATION}-other", 7) is not budget_of(LOCATION, 7)


def test_a_report_carries_what_its_process_counted():
    tally = RequestTally({Request("s3", "data", "put", "ok"): 3}, {"s3": 0.5})
    report = Report.from_json(Report(requests=tally).to_json())
    assert report.requests == tally
    total = merge_reports([report, report]).requests
    assert (total.requests, total.waited_s) == ({Request("s3", "data", "put", "ok"): 6}, {"s3": 1.0})


def test_a_scrape_has_the_counts_and_no_key():
    REQUEST_COUNTS.take()
    canary_store = store(Client(), f"{LOCATION}-scrape", per_s=1)
    canary_store.put("canary-key", b"canary-content")
    canary_store.put("day=1/canary-key.parquet", b"canary-content")
    text = exposition({}, "text/plain")[0].decode()
    families = {family.name: family for family in text_string_to_metric_families(text)}
    samples = families["headrace_store_requests"].samples
    labels = ("store", "purpose", "kind", "outcome")
    assert {(*map(sample.labels.get, labels), sample.value) for sample in samples} == {
        ("s3", "other", "put", "ok", 1.0),
        ("s3", "data", "put", "ok", 1.0),
    }
    assert families["headrace_store_budget_wait_seconds"].samples[0].value == pytest.approx(1, abs=0.5)
    assert "canary" not in text
    REQUEST_COUNTS.take()


def test_the_wait_for_the_budget_is_no_failure_of_a_first_try():
    client = Client()
    slow = store(client, f"{LOCATION}-slow", retry_s=0.2, per_s=2)
    threads = [threading.Thread(target=slow.put, args=("a", b"")) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(client.sent_at) == 4, "the last one waited 1.5 s, and 0.2 s are for tries without an answer"
    assert client.sent_at[-1] - client.sent_at[0] > 1.4


def test_a_retry_for_which_the_budget_leaves_no_time_fails_and_says_so():
    slow = store(Client(failure(503, may_pass=True)), f"{LOCATION}-exhausted", retry_s=0.4, per_s=1)
    with pytest.raises(Unanswered) as failed:
        slow.read("a")
    assert "after 1 try in 0.4 s (s3.retry_timeout); the budget of 1 request per second" in str(failed.value)


def test_a_limit_that_lets_nothing_go_is_refused():
    with pytest.raises(ValueError, match="must be positive, got 0"):
        RequestBudget(0)
