"""The one HTTP client: limits, redirects, proxies, and that it shows no secret. And that there is no other one."""

import logging
import re
import socketserver
import threading
import time
import traceback
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from datetime import timedelta
from pathlib import Path

import pytest

from headrace.writer.core import http
from headrace.writer.core.errors import ConfigError
from headrace.writer.core.http import Answer, RequestFailed, ask
from headrace.writer.schemas.registry_client import Login, RegistryClient
from tests.servers.scripted import Reply, Scripted, serve_script

ROOT = Path(__file__).parents[2]
TOKEN = {"Authorization": "Bearer the-token"}


@pytest.fixture
def server() -> Iterator[Scripted]:
    with serve_script(lambda _: Reply(body={"well": True})) as found:
        yield found


def test_a_redirect_is_an_answer_unless_it_is_allowed_and_another_server_gets_no_token(server: Scripted) -> None:
    with serve_script(lambda _: Reply(302, headers={"Location": f"{server.url}/there"})) as first:
        assert ask(first.url, headers=TOKEN, timeout_s=5).status == 302
        assert server.asked == []
        assert ask(first.url, headers=TOKEN, timeout_s=5, redirects=True).json() == {"well": True}
    assert [asked.path for asked in server.asked] == ["/there"]
    assert "authorization" not in server.asked[0].headers
    assert [asked.headers["authorization"] for asked in first.asked] == ["Bearer the-token"] * 2


def test_a_header_of_the_caller_replaces_one_of_the_client_whatever_its_case(server: Scripted) -> None:
    ask(server.url, headers={"user-agent": "mine", "X-Name": "Zoë"}, timeout_s=5)
    (asked,) = server.asked
    assert (asked.headers["user-agent"], asked.headers["x-name"]) == ("mine", "Zoë")
    assert asked.headers["accept-encoding"] == "identity"


def test_an_answer_that_is_too_large_is_refused(server: Scripted, monkeypatch: pytest.MonkeyPatch) -> None:
    server.answer = lambda _: Reply(body=b"x" * 2**20)
    assert len(ask(server.url, timeout_s=5).body) == 2**20
    monkeypatch.setattr(http, "_BYTES_MAX", 2**19)
    with pytest.raises(RequestFailed, match=r"cannot reach http://127\S+: an answer of more than 0 MiB"):
        ask(server.url, timeout_s=5)


@pytest.mark.parametrize(("path", "headers"), [("/ok", {"X": "secret\nvalue"}), ("/a-secret\n", {}), (":secret", {})])
def test_a_request_that_http_forbids_is_refused_without_its_secret(
    server: Scripted, path: str, headers: dict[str, str]
) -> None:
    with pytest.raises(RequestFailed, match="cannot ask") as failure:
        ask(server.url.rpartition(":")[0] + path if path[0] == ":" else server.url + path, headers=headers, timeout_s=5)
    assert "a-secret" not in str(failure.value)
    assert "secret\\n" not in str(failure.value)
    assert server.asked == []


def test_no_url_is_logged_for_it_may_hold_a_secret(server: Scripted, caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.DEBUG):
        ask(f"{server.url}/secret-path", timeout_s=5)
    assert "secret-path" not in caplog.text


def test_a_proxy_of_the_environment_is_used_unless_the_server_is_near(
    server: Scripted, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("http_proxy", server.url)
    monkeypatch.delenv("no_proxy", raising=False)
    monkeypatch.delenv("NO_PROXY", raising=False)
    assert ask("http://elsewhere.invalid/x", timeout_s=5).ok
    assert server.asked[0].path == "http://elsewhere.invalid/x"
    with pytest.raises(RequestFailed, match=r"cannot reach http://elsewhere\.invalid"):
        ask("http://elsewhere.invalid/x", timeout_s=5, proxies=False)


@pytest.mark.parametrize(
    "proxy",
    [
        "socks5://me:sesame@127.0.0.1:1",
        "ftp://me:sesame@127.0.0.1:1",
        "http://me:sesame/open@127.0.0.1:1",
        "http://[::",
    ],
)
def test_a_proxy_that_cannot_be_used_is_named_without_its_password(proxy: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("http_proxy", proxy)
    monkeypatch.setenv("no_proxy", "")
    with pytest.raises(RequestFailed, match="HTTP_PROXY or ALL_PROXY of the environment names no proxy") as failure:
        ask("http://elsewhere.invalid/x", timeout_s=5)
    with pytest.raises(
        ConfigError, match=r"the registry at http://elsewhere\.invalid cannot be asked: HTTPS_PROXY"
    ) as wrong:
        RegistryClient("http://elsewhere.invalid", Login())
    for error in (failure.value, wrong.value):
        assert "sesame" not in "".join(traceback.format_exception(error))


@contextmanager
def serve_bytes(*pieces: bytes, pause_s: float = 0.0) -> Iterator[str]:
    """Answer each connection with pieces, one after the other."""

    class Handler(socketserver.BaseRequestHandler):
        def handle(self) -> None:
            self.request.recv(65_536)
            with suppress(OSError):
                for piece in pieces:
                    self.request.sendall(piece)
                    time.sleep(pause_s)

    with socketserver.ThreadingTCPServer(("127.0.0.1", 0), Handler) as server:
        server.daemon_threads = True
        thread = threading.Thread(target=server.serve_forever, args=[0.02], daemon=True)
        thread.start()
        yield f"http://127.0.0.1:{server.server_address[1]}"
        server.shutdown()


@pytest.mark.parametrize("begin", [b"HTTP/1.1 200 OK\r\nX: ", b"HTTP/1.1 200 OK\r\n\r\n"])
def test_an_answer_that_drips_ends_in_time(begin: bytes) -> None:
    with serve_bytes(begin, *[b"a"] * 100, pause_s=0.05) as url:
        begin_s = time.monotonic()
        with pytest.raises(RequestFailed, match=r"no answer from http://127\S+ within 0\.5 s"):
            ask(url, timeout_s=0.5)
        assert time.monotonic() - begin_s < 3


def test_what_a_server_says_is_one_line_that_a_terminal_does_not_obey() -> None:
    with (
        serve_bytes(b"nonsense \x1b[31m" + b"x" * 5000 + b"\r\n\r\n") as url,
        pytest.raises(RequestFailed) as failure,
    ):
        ask(url, timeout_s=5)
    assert "\x1b" not in str(failure.value)
    assert len(str(failure.value)) < 400
    assert Answer(500, b"a\nb\x1b[31m" + b"y" * 1000).summary().startswith("500: a b?[31my")


def test_headers_of_the_caller_go_to_no_other_host(server: Scripted) -> None:
    moved_url = server.url.replace("127.0.0.1", "localhost")
    pool = {"Confluent-Identity-Pool-Id": "pool-1"}
    with serve_script(lambda _: Reply(302, headers={"Location": f"{moved_url}/there"})) as first:
        assert ask(first.url, headers=pool, timeout_s=5, redirects=True).ok
        assert first.asked[0].headers["confluent-identity-pool-id"] == "pool-1"
    assert "confluent-identity-pool-id" not in server.asked[0].headers


def test_product_code_asks_over_http_by_this_client_alone() -> None:
    of_others = re.compile(
        r"^\s*(?:from|import) (?:urllib\.(?:request|error)|http\.client|httpx|requests)\b", re.MULTILINE
    )
    packages = ("bucketers", "writer", "recovery", "autoscaler", "bench")
    paths = {path for package in packages for path in (ROOT / package).rglob("*.py")} - {
        ROOT / "writer/core/http.py",
        ROOT / "bench/features/request_counter.py",  # a proxy passes requests on as they came
        *(ROOT / "writer/table/iceberg/catalog").glob("*.py"),  # pyiceberg asks by requests: its errors and time limits
    }
    found = [path for path in paths if of_others.search(path.read_text(encoding="utf-8"))]
    assert found == []


@pytest.mark.parametrize(("after", "seconds"), [("30", 30), ("²", None), ("", None), ("-1", None), ("soon", None)])
def test_a_pause_that_a_server_asks_for_is_a_number_of_seconds_or_none(after: str, seconds: int | None) -> None:
    pause = Answer(503, b"", {"retry-after": after}).after
    assert pause == (None if seconds is None else timedelta(seconds=seconds))
