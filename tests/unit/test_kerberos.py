"""The login by Kerberos without a KDC: its exchange, its tickets' cache, its words."""

import re
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

from headrace.writer.logins import gssapi, kerberos, sasl
from headrace.writer.logins.errors import LoginFailed, LoginRefused, LoginUnavailable
from headrace.writer.logins.gssapi import GssFailed
from headrace.writer.logins.kerberos import CredentialCache, KerberosIdentity, ServiceLogin, login_failure
from headrace.writer.logins.sasl import KerberosLogin

KDC_UNREACHABLE = -1765328228
SERVICE_UNKNOWN = -1765328377
CLOCK_SKEW = -1765328347
TICKET_EXPIRED = -1765328352


@dataclass
class ScriptedContext:
    """A context of the library that says what a test wants."""

    messages: Sequence[bytes]
    offer: bytes = b"\1\0\0\0"
    given: list[bytes] = field(default_factory=list)
    wrapped: list[bytes] = field(default_factory=list)

    @property
    def is_complete(self) -> bool:
        return len(self.given) >= len(self.messages)

    def step(self, answer: bytes) -> bytes:
        self.given.append(answer)
        return self.messages[(len(self.given) - 1) % len(self.messages)]

    def unwrap(self, message: bytes) -> bytes:
        if message != b"broker's offer":
            raise GssFailed("Message stream modified", -1765328343)
        return self.offer

    def wrap(self, message: bytes) -> bytes:
        self.wrapped.append(message)
        return b"wrapped " + message


@pytest.fixture
def keytab(tmp_path: Path) -> Path:
    path = tmp_path / "keytab"
    path.write_bytes(b"the-keys-themselves")
    return path


@pytest.fixture
def script(monkeypatch: pytest.MonkeyPatch) -> Callable[[Any], list[str]]:
    """Let the library be played by a context, or fail, or fail in several ways; gives the names of the caches."""

    def play(context: Any) -> list[str]:
        caches = list[str]()

        @contextmanager
        def opened(*_: object) -> Iterator[Any]:
            yield context

        @contextmanager
        def credentials(_principal: object, _keytab: Path, credential_cache: str) -> Iterator[Any]:
            caches.append(credential_cache)
            outcome = context.pop(0) if isinstance(context, list) else context
            if isinstance(outcome, GssFailed):
                raise outcome
            yield None

        monkeypatch.setattr(gssapi, "open_name", opened)
        monkeypatch.setattr(gssapi, "open_credentials", credentials)
        monkeypatch.setattr(gssapi, "open_context", opened)
        monkeypatch.setattr(gssapi, "destroy_credentials", lambda name: caches.append(f"destroyed {name}"))
        return caches

    return play


def test_the_exchange_of_kafka(script: Callable[[Any], list[str]], keytab: Path) -> None:
    """A ticket, the broker's proof, nothing, the broker's offer, the choice of no layer."""
    context = ScriptedContext([b"ticket", b""])
    script(context)
    sent = list[bytes]()

    def exchange(token: bytes) -> bytes:
        sent.append(token)
        return [b"proof", b"broker's offer", b""][len(sent) - 1]

    KerberosLogin(KerberosIdentity("user@REALM", keytab)).log_in("broker", exchange)
    assert sent == [b"ticket", b"", b"wrapped \1\0\0\0"]
    assert context.given == [b"", b"proof"]


@pytest.mark.parametrize(
    ("offer", "answer", "says"),
    [
        (b"\6\0\0\0", b"broker's offer", "wants a security layer"),
        (b"\1\0\0", b"broker's offer", "wants a security layer"),
        (b"", b"broker's offer", "wants a security layer"),
        (b"\1\0\0\0", b"another's", r"the login kerberos fails \(Message stream modified\)"),
    ],
)
def test_an_offer_that_kafka_does_not_make_is_refused(
    script: Callable[[Any], list[str]], keytab: Path, offer: bytes, answer: bytes, says: str
) -> None:
    context = ScriptedContext([b"ticket", b""], offer)
    script(context)
    with pytest.raises(LoginRefused, match=says):
        KerberosLogin(KerberosIdentity("user@REALM", keytab)).log_in("broker", lambda _: answer)
    assert context.wrapped == []


def test_tickets_that_are_refused_are_replaced_once_they_are_old(
    script: Callable[[Any], list[str]], keytab: Path
) -> None:
    now_s = 0.0
    caches = script(ScriptedContext([b"ticket"]))
    tickets = CredentialCache(KerberosIdentity("user@REALM", keytab), now=lambda: now_s)
    with tickets.open_login("kafka", "broker") as first:
        assert not tickets.forget(first), "another ticket would be the same"
    now_s = 6.0
    with tickets.open_login("kafka", "broker") as second, tickets.open_login("kafka", "broker") as third:
        assert tickets.forget(second)
        assert tickets.forget(third), "its tickets are gone already"
    with tickets.open_login("kafka", "broker") as fourth:
        assert not tickets.forget(fourth)
    names = [re.sub(r"MEMORY:headrace-\d+-[0-9a-f]{16}", "cache", name) for name in caches]
    assert names == ["cache-0", "cache-0", "cache-0", "destroyed cache-0", "cache-1"]


def test_a_broker_that_refuses_old_tickets_is_shown_others(
    script: Callable[[Any], list[str]], keytab: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    now_s = 0.0
    script(ScriptedContext([b"ticket"]))
    identity = KerberosIdentity("user@REALM", keytab)
    tickets = CredentialCache(identity, now=lambda: now_s)
    monkeypatch.setattr(sasl, "credential_cache", lambda _: tickets)

    def refuse(_: bytes) -> bytes:
        raise LoginRefused("the broker refuses it")

    with pytest.raises(LoginRefused, match="the broker refuses it"):
        KerberosLogin(identity).log_in("broker", refuse)
    now_s = 6.0
    with pytest.raises(LoginUnavailable, match=r"the broker refuses it\. Other tickets are asked for"):
        KerberosLogin(identity).log_in("broker", refuse)


def test_a_kdc_that_does_not_answer_is_asked_again_after_a_pause(
    script: Callable[[Any], list[str]], keytab: Path
) -> None:
    now_s = 100.0
    caches = script(GssFailed("Cannot contact any KDC", KDC_UNREACHABLE))
    tickets = CredentialCache(KerberosIdentity("user@REALM", keytab), now=lambda: now_s)

    def fail() -> None:
        with pytest.raises(LoginUnavailable, match=r"Cannot contact any KDC\)\. Check that the KDC is up"):
            tickets.open_login("kafka", "broker").__enter__()

    for _ in range(5):
        fail()
    assert len(caches) == 1
    for number in range(2, 12):
        now_s += 30
        fail()
        assert len(caches) == number
    script(ScriptedContext([b"ticket"]))
    now_s += 30
    with tickets.open_login("kafka", "broker") as login:
        assert login.first_message == b"ticket"


@pytest.mark.parametrize(
    ("failure", "kind", "says"),
    [
        (GssFailed("Cannot contact any KDC", KDC_UNREACHABLE), LoginUnavailable, "Check that the KDC is up"),
        (GssFailed("Client's credentials have been revoked", -1765328366), LoginRefused, "unlock the principal"),
    ],
)
def test_where_tickets_have_ended_the_kdc_s_reason_to_give_no_others_is_said(
    script: Callable[[Any], list[str]], keytab: Path, failure: GssFailed, kind: type[LoginFailed], says: str
) -> None:
    caches = script([GssFailed("Ticket expired", TICKET_EXPIRED), failure])
    with pytest.raises(kind, match=says):
        CredentialCache(KerberosIdentity("user@REALM", keytab)).open_login("kafka", "broker").__enter__()
    names = [re.sub(r"MEMORY:headrace-\d+-[0-9a-f]{16}", "cache", name) for name in caches]
    assert names == ["cache-0", "destroyed cache-0", "cache-1"]


def test_one_broker_that_the_kdc_does_not_know_stops_no_login_at_another(
    script: Callable[[Any], list[str]], keytab: Path
) -> None:
    caches = script(GssFailed("Server kafka/a not found", SERVICE_UNKNOWN))
    tickets = CredentialCache(KerberosIdentity("user@REALM", keytab))
    for _ in range(2):
        with pytest.raises(LoginRefused, match=r"Check kafka\.security\.login\.service"):
            tickets.open_login("kafka", "a").__enter__()
    assert len(caches) == 2


def test_only_one_thread_asks_at_a_time(keytab: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    asking = threading.Lock()
    tickets = CredentialCache(KerberosIdentity("user@REALM", keytab))

    def ask(*_: object) -> tuple[ScriptedContext, bytes]:
        assert asking.acquire(blocking=False)
        threading.Event().wait(0.001)
        asking.release()
        return ScriptedContext([b"ticket"]), b"ticket"

    monkeypatch.setattr(tickets, "_ask_credentials", ask)
    logins = list[ServiceLogin]()

    def log_in() -> None:
        for _ in range(20):
            with tickets.open_login("kafka", "broker") as login:
                logins.append(login)

    threads = [threading.Thread(target=log_in) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(logins) == 160


@pytest.mark.parametrize(
    ("code", "kind", "says"),
    [
        (KDC_UNREACHABLE, LoginUnavailable, "Check that the KDC is up"),
        (-1765328164, LoginUnavailable, "Check that the KDC is up"),
        (CLOCK_SKEW, LoginRefused, "Set this machine's clock"),
        (-1765328378, LoginRefused, "kafka.security.login.principal"),
        (-1765328360, LoginRefused, "export it anew"),
        (12, LoginRefused, "principal, keytab, service; krb5.conf"),
        (0, LoginRefused, "principal, keytab, service; krb5.conf"),
    ],
)
def test_each_reason_says_what_to_look_at(code: int, kind: type[LoginFailed], says: str) -> None:
    failure = login_failure("the library's words", code)
    assert type(failure) is kind
    assert "(the library's words)" in str(failure)
    assert says in str(failure)


def test_a_machine_without_the_library_is_told_what_to_install(keytab: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(gssapi, "LIBRARY", "libgssapi_absent.so.2")
    gssapi._library.cache_clear()
    try:
        with pytest.raises(LoginRefused, match=r"libgssapi_absent.*Debian's libgssapi-krb5-2; the image of headrace"):
            CredentialCache(KerberosIdentity("user@REALM", keytab)).open_login("kafka", "broker").__enter__()
    finally:
        gssapi._library.cache_clear()


def test_no_message_has_a_key_in_it(script: Callable[[Any], list[str]], keytab: Path) -> None:
    identity = KerberosIdentity("user@REALM", keytab)
    script(GssFailed("No credentials cache found", -1765328189))
    with pytest.raises(LoginRefused, match=r"has no keys of user@REALM, or is no keytab") as failure:
        CredentialCache(identity).open_login("kafka", "broker").__enter__()
    for words in (str(failure.value), repr(identity), repr(KerberosLogin(identity))):
        assert "the-keys-themselves" not in words
    keytab.unlink()
    with pytest.raises(LoginRefused, match=rf"the keytab {keytab} cannot be read: No such file or directory"):
        CredentialCache(identity).open_login("kafka", "broker").__enter__()


def test_a_krb5_conf_is_chosen_for_the_process(keytab: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("KRB5_CONFIG", "/etc/other.conf")
    kerberos._choose_config(None)
    assert kerberos.os.environ["KRB5_CONFIG"] == "/etc/other.conf"
    kerberos._choose_config(keytab)
    assert kerberos.os.environ["KRB5_CONFIG"] == str(keytab)
