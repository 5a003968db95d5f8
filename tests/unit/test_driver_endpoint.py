"""What a driver tells over HTTP, and where it is found."""

import json
import os
import socket
from contextlib import ExitStack
from datetime import UTC, datetime
from http import HTTPStatus
from http.client import HTTPConnection
from urllib.parse import urlsplit

import pytest

from headrace.writer.clients.driver_endpoint import (
    Driver,
    announce,
    ask_driver,
    check_no_driver,
    find_announcement,
    retract,
    this_driver,
)
from headrace.writer.config.sections.connections import Http
from headrace.writer.core.errors import ConfigError, HeadraceError
from headrace.writer.status.model import Sample
from headrace.writer.status.pause import Pause
from headrace.writer.status.progress import Progress
from headrace.writer.web import http_server
from headrace.writer.web.endpoints import serving, starts
from headrace.writer.web.http_server import first_of, is_near
from tests.support.commit_facts import facts
from tests.support.sample_records import config

ANY = Http(port=0)
NOON = datetime(2026, 11, 20, 12, tzinfo=UTC)


@pytest.fixture
def progress():
    return Progress("clicks")


@pytest.fixture
def url(progress):
    with serving(ANY, {"clicks": progress}) as found:
        yield found


def get(url: str, path: str, method: str = "GET") -> tuple[int, str, str]:
    connection = HTTPConnection(urlsplit(url).netloc, timeout=60)
    try:
        connection.request(method, path)
        response = connection.getresponse()
        return response.status, response.headers["Content-Type"], response.read().decode()
    finally:
        connection.close()


def begun(progress: Progress) -> None:
    progress.record_start(epoch=3, run=1, frontier={}, limits={}, buckets=[], recent=[])
    progress.set_running()


def test_a_driver_is_ready_once_its_query_runs_and_healthy_before(url, progress):
    assert get(url, "/readyz")[::2] == (503, "pipeline clicks is starting\n")
    assert get(url, "/healthz")[::2] == (200, "ok\n")
    begun(progress)
    assert get(url, "/readyz")[::2] == (200, "ok\n")


def test_a_start_is_proven_by_its_first_commit_and_stays_so(url, progress):
    assert get(url, "/rolloutz")[::2] == (503, "pipeline clicks is starting\n")
    begun(progress)
    progress.add_sample(Sample(NOON, {("clicks", 0): 5}), {("clicks", 0): 0})
    assert get(url, "/readyz")[0] == 200
    assert get(url, "/rolloutz")[::2] == (503, "pipeline clicks has records waiting and no commit yet\n")
    progress.begin_batch(0, "look")
    progress.skip_batch()
    assert get(url, "/rolloutz")[0] == 503, "a batch that the table had already proves nothing"
    progress.begin_batch(1, "look")
    progress.record_commit(1, facts(), {("clicks", 0): 5}, [])
    assert get(url, "/rolloutz")[::2] == (200, "ok\n")
    progress.add_sample(Sample(NOON, {("clicks", 0): 9}), {("clicks", 0): 0})
    assert get(url, "/rolloutz")[0] == 200
    progress.record_failure("the disk is full")
    assert get(url, "/rolloutz")[0] == 503


def test_a_start_is_proven_where_nothing_waits_and_where_nothing_is_to_be_committed(url, progress):
    progress.add_sample(Sample(NOON, {("clicks", 0): 0}), {})
    assert get(url, "/rolloutz")[0] == 503, "it has not begun"
    begun(progress)
    progress.add_sample(Sample(NOON, {("clicks", 0): 8, ("clicks", 1): 0}), {("clicks", 0): 8})
    assert get(url, "/rolloutz")[::2] == (200, "ok\n"), "what Kafka no longer holds does not wait"


def test_a_start_that_is_paused_is_as_well_as_it_was_asked_to_be(url, progress):
    begun(progress)
    progress.set(pause=Pause(at="2026-11-20T12:00:00Z", by="ann", reason="a migration"))
    assert get(url, "/rolloutz")[0] == 200


def test_a_dead_query_is_unhealthy_and_says_why(url, progress):
    begun(progress)
    progress.record_failure("the disk is full")
    assert get(url, "/healthz")[::2] == (503, "pipeline clicks failed: the disk is full\n")
    assert get(url, "/readyz")[0] == 503


def test_a_long_batch_and_a_drained_pipeline_are_healthy(url, progress):
    begun(progress)
    progress.begin_batch(0, "tasks")
    assert get(url, "/healthz")[0] == 200
    progress.set_draining()
    assert get(url, "/healthz")[0] == 200
    progress.record_stop()
    assert get(url, "/healthz")[0] == 200


def test_one_dead_pipeline_of_two_is_named():
    board = {"clicks": Progress("clicks"), "views": Progress("views")}
    board["views"].record_failure("no such topic")
    with serving(ANY, board) as url:
        assert get(url, "/healthz")[2] == "pipeline views failed: no such topic\n"


def test_metrics_and_status_are_served(url, progress):
    begun(progress)
    status, content_type, body = get(url, "/metrics")
    assert (status, content_type.split(";")[0]) == (200, "text/plain")
    assert 'headrace_epoch{pipeline="clicks"} 3.0' in body
    status, content_type, body = get(url, "/status?pretty=no")
    assert (status, content_type) == (200, "application/json")
    assert json.loads(body)["pipelines"]["clicks"]["state"] == "running"


def test_the_index_names_what_there_is_and_the_rest_is_404(url):
    index = get(url, "/")[2]
    for path in [line for line in index.splitlines() if line.startswith("/")]:
        assert get(url, path)[0] in (200, 503)
    assert get(url, "/etc/passwd")[0] == 404


def test_head_gives_no_body_and_a_post_is_refused(url):
    assert get(url, "/healthz", "HEAD")[::2] == (200, "")
    status, content_type, body = get(url, "/status", "POST")
    assert (status, content_type, body) == (501, "text/plain; charset=utf-8", "Unsupported method ('POST')\n")


def post(url: str, path: str, token: str | None = None) -> tuple[int, str]:
    connection = HTTPConnection(urlsplit(url).netloc, timeout=60)
    try:
        connection.request("POST", path, headers={} if token is None else {"Authorization": f"Bearer {token}"})
        response = connection.getresponse()
        return response.status, response.read().decode()
    finally:
        connection.close()


@pytest.mark.parametrize(
    ("host", "near"),
    [("127.0.0.1", True), ("127.0.0.9", True), ("::1", True), ("::ffff:127.0.0.1", True), ("10.0.0.7", False),
     ("::ffff:10.0.0.7", False), ("fe80::1%eth0", False)],
)  # fmt: skip
def test_loopback_is_this_machine(host, near):
    assert is_near(host) == near


def test_a_post_from_another_machine_is_refused(progress, monkeypatch):
    board = {"clicks": progress}
    asked: list[tuple[str, bool, int | None]] = []
    monkeypatch.setattr(http_server, "is_near", lambda _: False)
    with serving(ANY, board, starts(board, "secret", lambda *request: asked.append(request))) as url:
        assert post(url, "/pipelines/clicks/start", "secret") == (403, "this is done from the same machine only\n")
    assert asked == []


def test_posts_are_answered_by_the_handler_of_the_path_and_status_says_more(progress):
    def scale(path: str, authorization: str) -> http_server.Answer | None:
        return (HTTPStatus.OK, "text/plain", authorization.encode()) if path == "/scale?executors=2" else None

    posts = first_of(starts({"clicks": progress}, "secret", lambda *_, **__: None), scale)
    with serving(ANY, {"clicks": progress}, posts, more=lambda: {"executors": {"requested": 2}}) as url:
        assert post(url, "/scale?executors=2", "other") == (200, "Bearer other")
        assert post(url, "/pipelines/clicks/start", "other")[0] == 403
        assert post(url, "/nowhere", "other")[0] == 501
        assert json.loads(get(url, "/status")[2])["executors"] == {"requested": 2}


def test_a_client_with_the_token_may_start_a_pipeline_that_has_ended(progress):
    asked: list[tuple[str, bool, int | None]] = []
    board = {"clicks": progress}
    with serving(ANY, board, starts(board, "secret", lambda *request: asked.append(request))) as url:
        assert post(url, "/pipelines/clicks/start") == (403, "this needs the token of the supervisor\n")
        assert post(url, "/pipelines/clicks/start", "wrong")[0] == 403
        assert post(url, "/pipelines/views/start", "secret")[0] == 404
        assert post(url, "/pipelines/clicks/stop", "secret")[0] == 501
        begun(progress)
        assert post(url, "/pipelines/clicks/start", "secret") == (409, "pipeline clicks has not ended: running\n")
        progress.record_failure("the disk is full")
        assert asked == []
        assert post(url, "/pipelines/clicks/start", "secret") == (202, "asked\n")
        assert post(url, "/pipelines/clicks/start?new_run=true", "secret") == (202, "asked\n")
        assert post(url, "/pipelines/clicks/start?new_run=false&lease=7", "secret") == (202, "asked\n")
    assert asked == [("clicks", False, None), ("clicks", True, None), ("clicks", False, 7)]


def test_without_a_supervisor_no_client_has_the_token(progress):
    progress.record_failure("the disk is full")
    board = {"clicks": progress}
    with serving(ANY, board, starts(board, "", lambda *_: None)) as url:
        assert post(url, "/pipelines/clicks/start", "")[0] == 403


def test_a_silent_client_holds_up_no_other(url):
    host, port = urlsplit(url).netloc.split(":")
    with ExitStack() as silent:
        for _ in range(5):
            silent.enter_context(socket.create_connection((host, int(port)), timeout=60))
        assert get(url, "/healthz")[0] == 200


def test_a_port_that_is_taken_is_refused_with_the_mend(url):
    port = urlsplit(url).port
    with pytest.raises(HeadraceError) as refused, serving(Http(port=port), {}):
        pass
    assert refused.value.exit_code == 1
    assert str(refused.value) == (
        f"port {port} of 127.0.0.1 is taken, perhaps by another driver. Set http.port to a free one (0 takes any), "
        "or http.enabled to false."
    )


def test_an_address_of_another_machine_is_a_fault_of_the_configuration():
    elsewhere = Http(host="192.0.2.1")  # kept for documentation: nobody has it
    with (
        pytest.raises(ConfigError, match=r"cannot listen on 192\.0\.2\.1:9643: .*http\.host") as refused,
        serving(elsewhere, {}),
    ):
        pass
    assert refused.value.exit_code == 2


def test_the_port_is_free_again_afterwards():
    with serving(ANY, {}) as other:
        port = urlsplit(other).port
    with serving(Http(port=port), {}) as again:
        assert urlsplit(again).port == port


def test_switched_off_it_listens_nowhere():
    with serving(Http(enabled=False), {}) as url:
        assert url is None


@pytest.mark.parametrize(("host", "shown"), [("0.0.0.0", "127.0.0.1"), ("localhost", "localhost")])
def test_a_driver_that_listens_everywhere_is_found_on_this_machine(host, shown):
    with serving(Http(host=host, port=0), {"clicks": Progress("clicks")}) as url:
        assert urlsplit(url).hostname == shown
        assert get(url, "/healthz")[0] == 200


# --- where the driver is found ----------------------------------------------------------------------------------


def test_a_driver_is_announced_found_and_asked(tmp_path, url, progress):
    begun(progress)
    driver = this_driver(url, 3)
    announce(str(tmp_path), "clicks", driver)
    assert find_announcement(str(tmp_path), "clicks") == driver
    assert driver.pid == os.getpid()
    assert ask_driver(driver, "clicks")["epoch"] == 3
    assert [path.name for path in (tmp_path / "clicks").iterdir()] == ["driver.json"]
    said = json.loads((tmp_path / "clicks" / "driver.json").read_text())
    assert set(said) == {"url", "pid", "started", "epoch", "certificate"}
    retract(str(tmp_path), "clicks", driver)
    assert find_announcement(str(tmp_path), "clicks") is None


def test_an_older_driver_does_not_take_away_the_file_of_a_newer_one(tmp_path):
    older, newer = (Driver("http://127.0.0.1:1", 1, "2026-11-20T12:00:00+00:00", epoch) for epoch in (1, 2))
    announce(str(tmp_path), "clicks", older)
    announce(str(tmp_path), "clicks", newer)
    retract(str(tmp_path), "clicks", older)
    assert find_announcement(str(tmp_path), "clicks") == newer


@pytest.mark.parametrize("text", ["", "{", "[]", '{"url": "x"}'])
def test_a_file_that_cannot_be_read_announces_no_driver(tmp_path, text):
    (tmp_path / "clicks").mkdir()
    (tmp_path / "clicks" / "driver.json").write_text(text)
    assert find_announcement(str(tmp_path), "clicks") is None


def test_where_checkpoints_cannot_be_read_no_command_takes_it_that_no_driver_runs(tmp_path):
    settings = config(tmp_path)
    check_no_driver(settings, "clicks", "Stop it.")
    (tmp_path / "checkpoints" / "clicks" / "driver.json").mkdir(parents=True)
    with pytest.raises(
        HeadraceError, match=r"^it cannot be told whether a driver of pipeline 'clicks' runs: cannot read"
    ):
        check_no_driver(settings, "clicks", "Stop it.")


def test_a_driver_that_is_gone_answers_nothing(progress):
    with serving(ANY, {"clicks": progress}) as url:
        pass
    assert ask_driver(this_driver(url, 3), "clicks") is None


def test_another_driver_at_the_old_address_is_not_taken_for_it(url, progress):
    begun(progress)
    assert ask_driver(this_driver(url, 2), "clicks") is None, "another start"
    assert ask_driver(this_driver(url, 3), "views") is None, "another pipeline"


def test_something_else_at_the_old_address_is_no_driver():
    listening = socket.create_server(("127.0.0.1", 0))
    with listening:
        assert ask_driver(Driver(f"http://127.0.0.1:{listening.getsockname()[1]}", 1, "", 1), "clicks") is None


def test_a_proxy_of_the_environment_is_not_used(url, progress, monkeypatch):
    begun(progress)
    monkeypatch.setenv("http_proxy", "http://127.0.0.1:1")
    monkeypatch.delenv("no_proxy", raising=False)
    assert ask_driver(this_driver(url, 3), "clicks") is not None


def test_the_time_of_the_announcement_is_utc():
    assert datetime.fromisoformat(this_driver("http://127.0.0.1:1", 1).started).tzinfo == UTC
