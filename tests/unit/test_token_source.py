"""When a token is asked for: by a clock of the test's own."""

import math
import pickle
import threading
from collections.abc import Callable
from dataclasses import dataclass, field
from itertools import pairwise

import pytest

from headrace.writer.logins.errors import LoginFailed, LoginRefused, LoginUnavailable
from headrace.writer.logins.token_source import Token, TokenSource, token_source


@dataclass(eq=False)
class Server:
    """Gives tokens that live for 100 s by a clock; fails with what stands in `failure`."""

    now_s: float = 1_000.0
    life_s: float = 100.0
    kept_s: float = math.inf
    text: str = ""
    failure: LoginFailed | None = None
    asked_at: list[float] = field(default_factory=list)
    before_answer: Callable[[], None] = lambda: None

    def ask(self) -> Token:
        self.asked_at.append(self.now_s)
        self.before_answer()
        if self.failure is not None:
            raise self.failure
        text = self.text or f"token-{len(self.asked_at)}"
        return Token(text, self.now_s, self.now_s + self.life_s, kept_s=self.kept_s)


@pytest.fixture
def server() -> Server:
    return Server()


@pytest.fixture
def source(server: Server) -> TokenSource:
    return TokenSource(server, now=lambda: server.now_s)


def test_a_token_is_kept_for_four_fifths_of_its_life(server: Server, source: TokenSource) -> None:
    first = source.token()
    server.now_s += 79.5
    assert source.token() is first
    server.now_s += 1
    assert source.token().text == "token-2"
    assert server.asked_at == [1_000.0, 1_080.5]


def test_the_old_token_is_shown_while_the_server_fails_and_it_lasts(server: Server, source: TokenSource) -> None:
    first = source.token()
    server.failure = LoginUnavailable("the server is down")
    server.now_s += 98.9
    assert source.token() is first
    server.now_s += 0.2
    with pytest.raises(LoginUnavailable, match="the server is down"):
        source.token()


def test_a_renewal_that_fails_is_logged_once_for_each_question(
    server: Server, source: TokenSource, caplog: pytest.LogCaptureFixture
) -> None:
    source.token()
    server.failure = LoginUnavailable("the server is down")
    server.now_s += 81
    for _ in range(5):
        source.token()
    assert len(server.asked_at) == 2
    assert caplog.text.count("token_not_renewed") == 1
    server.failure = LoginUnavailable("the server is down")
    server.now_s += 2
    source.token()
    assert caplog.text.count("token_not_renewed") == 2


def test_between_questions_to_a_server_that_fails_is_a_pause_that_grows(server: Server, source: TokenSource) -> None:
    server.failure = LoginUnavailable("the server is down")
    for _ in range(1_200):
        with pytest.raises(LoginUnavailable, match="the server is down"):
            source.token()
        server.now_s += 0.1
    pauses = [after - before for before, after in pairwise(server.asked_at)]
    assert 0.4 < pauses[0] <= 1.2
    assert 14 < pauses[-1] <= 30.2
    assert len(server.asked_at) < 15
    server.failure = None
    server.now_s += 30
    assert source.token().end_s == server.now_s + 100


def test_a_token_that_a_broker_refused_is_not_shown_again(server: Server, source: TokenSource) -> None:
    first = source.token()
    refusal = LoginRefused("the broker refuses the token")
    source.refuse(first, refusal)
    with pytest.raises(LoginRefused, match="the broker refuses the token"):
        source.token()
    assert len(server.asked_at) == 1, "for a moment nothing is asked"
    server.now_s += 1
    second = source.token()
    assert second.text == "token-2"
    source.refuse(first, refusal)
    assert source.token() is second, "another connection was refused with the first one"


def test_a_token_that_was_read_again_is_refused_as_the_same(server: Server, source: TokenSource) -> None:
    """As that of a file is, which is read at each login."""
    server.kept_s = 0.0
    server.text = "of-the-file"
    first, second = source.token(), source.token()
    assert (first.text, len(server.asked_at)) == (second.text, 2)
    source.accept(first)
    assert source.was_accepted
    source.refuse(first, LoginUnavailable("refused"))
    with pytest.raises(LoginUnavailable, match="refused"):
        source.token()
    assert len(server.asked_at) == 2


def test_a_server_is_left_alone_for_as_long_as_it_asks_but_not_for_an_hour(server: Server, source: TokenSource) -> None:
    for after_s, pause_s in ((60.0, 60.0), (3600.0, 120.0)):
        server.asked_at.clear()
        server.failure = LoginUnavailable("it answers 429", after_s)
        begin_s = server.now_s
        while len(server.asked_at) < 2:
            with pytest.raises(LoginUnavailable):
                source.token()
            server.now_s += 1
        assert server.asked_at == [begin_s, begin_s + pause_s]
        server.now_s += 200


def test_the_pause_after_refusals_grows_until_a_broker_accepts(server: Server, source: TokenSource) -> None:
    for _ in range(6):
        token = source.token()
        source.refuse(token, LoginUnavailable("refused"))
        server.now_s += 31
    token = source.token()
    assert not source.was_accepted
    source.accept(token)
    assert source.was_accepted
    source.refuse(token, LoginUnavailable("refused"))
    server.now_s += 1
    assert source.token() is not token


@pytest.mark.parametrize(("life_s", "words"), [(-5.0, "ended 5 s ago"), (0.5, "0.5 s more, too short for a login")])
def test_a_token_that_cannot_be_shown_is_a_failure(
    server: Server, source: TokenSource, life_s: float, words: str
) -> None:
    server.life_s = life_s
    with pytest.raises(LoginUnavailable, match=words):
        source.token()
    with pytest.raises(LoginUnavailable, match=words):
        source.token()
    assert len(server.asked_at) == 1


def test_a_clock_that_is_set_back_or_ahead_leads_to_another_token_at_most(server: Server, source: TokenSource) -> None:
    first = source.token()
    server.now_s -= 600
    assert source.token() is first
    server.now_s += 1_200
    assert source.token() is not first


def test_threads_have_the_old_token_while_one_of_them_asks(server: Server, source: TokenSource) -> None:
    first = source.token()
    answers, is_asked = threading.Event(), threading.Event()

    def wait_for_answer() -> None:
        is_asked.set()
        assert answers.wait(30)

    server.before_answer = wait_for_answer
    server.now_s += 90
    tokens = list[Token]()
    thread = threading.Thread(target=lambda: tokens.append(source.token()))
    thread.start()
    assert is_asked.wait(30)
    assert source.token() is first
    answers.set()
    thread.join(30)
    assert [token.text for token in tokens] == ["token-2"]
    assert source.token().text == "token-2"


def test_threads_without_a_token_share_one_question(server: Server, source: TokenSource) -> None:
    tokens = list[Token]()
    threads = [threading.Thread(target=lambda: tokens.append(source.token())) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(30)
    assert len(server.asked_at) == 1
    assert {token.text for token in tokens} == {"token-1"}


def test_equal_requests_share_their_tokens_and_a_token_stays_in_its_process() -> None:
    server = Server()
    assert token_source(server, "kafka") is token_source(server, "kafka")
    assert token_source(server, "kafka") is not token_source(Server(), "kafka")
    with pytest.raises(TypeError, match="a token stays in its process"):
        pickle.dumps(server.ask())
    assert "token-" not in repr(server.ask())
