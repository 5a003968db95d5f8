"""The whole writer with the logins of Kerberos and of Amazon MSK: to its end, as a stream, and after kill -9."""

import itertools
import json
import os
import re
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from dataclasses import dataclass
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest

from headrace.writer.demo.devstack.kafka import create_topics
from headrace.writer.demo.devstack.process import free_ports
from tests.servers.aws_credentials import IDENTITY_TOKEN, credential_server, web_identity
from tests.servers.kdc import REALM, USER, Kdc, kerberos_broker
from tests.servers.msk_proxy import REGION, msk_cluster
from tests.support import oracle
from tests.support.oauth_site import make_login_site, producing
from tests.support.shown_secrets import (
    Ground,
    collect_screens,
    find_in_places,
    key_forms,
    read_files,
    run_command,
    spark_conf,
)
from tests.support.writer_process import Site, Writer

pytestmark = [pytest.mark.slow, pytest.mark.engines, pytest.mark.timeout(600)]
SESSION_S = 5
_number = itertools.count()
# One that begins amid another.
JAVA_LINE = re.compile(r"\S\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d\+\d{4} (ERROR|WARN|INFO) ")


@dataclass(frozen=True)
class Door:
    """A broker's door that wants a login. `bootstrap`: the open one; `logins`: counts those of Python, and of Java.

    `misleading`: options of Java by which its own login fails.
    """

    bootstrap: str
    address: str
    login: dict[str, Any]
    logins: Callable[[], tuple[int, int]]
    misleading: str
    # What nothing may show.
    secrets: Callable[[], list[str]]
    # Lets the KDC, or broker and STS, refuse the writer, or not any more.
    refuse: Callable[[bool], None]


def open_kerberos(folder: Path, stack: ExitStack) -> Door:
    """Return a door that wants tickets, of 20 s, for sessions of 5 s."""
    kdc = stack.enter_context(Kdc(folder / "kdc", life="20s"))
    broker = stack.enter_context(kerberos_broker(folder / "broker", kdc, session_ms=1_000 * SESSION_S))
    login = {
        "type": "kerberos", "principal": f"{USER}@{REALM}", "keytab": str(kdc.keytab), "config_file": str(kdc.config),
    }  # fmt: skip

    def count_questions() -> tuple[int, int]:
        # The KDC does not know which of its clients is Java's.
        tickets = kdc.questions("TGS_REQ")
        return tickets, tickets

    other_kdc = "-Djava.security.krb5.realm=OTHER.TEST -Djava.security.krb5.kdc=127.0.0.1:1"
    keys = [form for key in kdc.user_keys() for form in key_forms(key)]
    assert keys
    # Nor where the keytab lies, which is for messages about it.
    secrets = [*keys, str(kdc.keytab)]

    def refuse(is_refused: bool) -> None:
        kdc.lock(USER, is_locked=is_refused)

    return Door(broker.bootstrap, broker.kerberos, login, count_questions, other_kdc, lambda: secrets, refuse)


def open_msk(folder: Path, stack: ExitStack) -> Door:
    """Return a door as at MSK, for the role of a web identity, with sessions of 5 s."""
    cluster = stack.enter_context(msk_cluster(folder / "broker", session_s=SESSION_S))
    credentials = stack.enter_context(credential_server())
    cluster.proxy.keys = credentials.keys
    # Both clients ask STS for each token.
    credentials.life = timedelta(minutes=1)
    stack.enter_context(web_identity(folder, credentials))

    def count_logins() -> tuple[int, int]:
        assert cluster.proxy.refusals == []
        agents = [login.agent.partition("/")[0] for login in cluster.proxy.logins]
        return agents.count("headrace"), agents.count("aws-msk-iam-auth")

    def secrets() -> list[str]:
        keys = credentials.keys.values()
        # One that is cut is a token, too: its signature is near its end.
        tokens = {text for login in cluster.proxy.logins for text in (login.token, login.token[-60:])}
        return [IDENTITY_TOKEN, *(key.secret for key in keys), *(key.session_token for key in keys), *tokens]

    login = {"type": "msk_iam", "region": REGION}
    other_key = "-Daws.accessKeyId=AKIDOTHER -Daws.secretAccessKey=secret-of-another"

    def refuse(is_refused: bool) -> None:
        cluster.proxy.keys = {} if is_refused else credentials.keys
        # It repeats the identity's token.
        credentials.failure = (403, "AccessDenied") if is_refused else None
        if not is_refused:
            cluster.proxy.refusals.clear()

    return Door(cluster.bootstrap, cluster.iam, login, count_logins, other_key, secrets, refuse)


@pytest.fixture(scope="module", params=[open_kerberos, open_msk], ids=["kerberos", "msk_iam"])
def door(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Door]:
    with ExitStack() as stack:
        yield request.param(tmp_path_factory.mktemp("door"), stack)


@pytest.fixture
def topic(door: Door) -> str:
    name = f"events-{next(_number)}"
    create_topics(door.bootstrap, {name: 2})
    return name


@pytest.fixture
def site(door: Door, registry_url: str, tmp_path: Path) -> Site:
    return make_login_site(tmp_path, door.bootstrap, door.address, registry_url, door.login)


def wait_for_all(writer: Writer, site: Site, topic: str, lake: Path) -> None:
    """Wait until the table has all records of the topic."""
    expected = sum(site.ends(topic).values())
    writer.until(lambda: oracle.count(lake) >= expected, 120)


def test_a_run_to_the_end_and_a_stream_that_is_killed_lose_double_and_tell_nothing(
    door: Door, site: Site, topic: str, tmp_path: Path
) -> None:
    (ui,) = free_ports(1)
    site.overrides["spark"] = {"conf": spark_conf(tmp_path, ui)}
    lake = site.pipeline("events", [topic], commit={"max_delay": "1 s"})
    site.fill(topic, 500)
    # In a JVM of its own: one that is shared began without what this login needs.
    site.once(env={"HEADRACE_LOG": "text"})
    oracle.check(lake, "events", site.ends(topic))
    messages = iter(site.values(topic, 20_000, seed=8))
    before = door.logins()
    with producing(lambda: site.send(topic, itertools.islice(messages, 20))):
        writer = site.start()
        writer.until(lambda: writer.commits() >= 3)
        writer.kill()
        oracle.check_rows(lake, "events")
        writer = site.start()
        # Several sessions end meanwhile; of Kerberos also tickets.
        writer.until(lambda: writer.commits() >= 5 * SESSION_S, 120)
    wait_for_all(writer, site, topic, lake)
    screens = collect_screens(Ground(site, topic, str(lake), ui), writer)
    screens["log"] = writer.stop()
    assert find_in_places(screens | dict(read_files(tmp_path / "lake")), door.secrets()) == {}
    assert "sasl.jaas.config = [hidden]" in screens["log"], "Kafka's own client says what it was given"
    oracle.check(lake, "events", site.ends(topic))
    for count_before, count in zip(before, door.logins(), strict=True):
        assert count - count_before >= 4


def test_a_login_that_is_refused_in_mid_stream_ends_it_with_a_sentence_and_loses_and_tells_nothing(
    door: Door, site: Site, topic: str, tmp_path: Path
) -> None:
    (ui,) = free_ports(1)
    site.overrides["spark"] = {"conf": spark_conf(tmp_path, ui)}
    lake = site.pipeline("events", [topic], commit={"max_delay": "1 s"})
    messages = iter(site.values(topic, 20_000))
    with producing(lambda: site.send(topic, itertools.islice(messages, 20))):
        writer = site.start()
        writer.until(lambda: writer.commits() >= 3)
        door.refuse(True)
        try:
            code = writer.wait(240)
            screens = {"log": writer.output(), "validate": run_command(site, "validate", "--json", code=2)}
        finally:
            door.refuse(False)
    assert code != 0
    sentence = screens["log"].rstrip().splitlines()[-1]
    assert "no login" in sentence, sentence
    assert "Traceback" not in screens["validate"]
    assert JAVA_LINE.search(screens["log"]) is None, "a line of Java's log ends before the next begins"
    screens |= read_files(tmp_path / "spark-events", tmp_path / "checkpoints", tmp_path / "lake")
    assert find_in_places(screens, door.secrets()) == {}
    site.once(env={"HEADRACE_LOG": "text"})
    oracle.check(lake, "events", site.ends(topic))


def findings(site: Site, java_options: str = "") -> dict[str, dict[str, str]]:
    """Return what `validate` finds, by check."""
    ended = subprocess.run(
        [sys.executable, "-m", "headrace.writer.cli", "validate", str(site.config), "--json"],
        capture_output=True, text=True, timeout=200, check=False,
        env={**os.environ, **({"JAVA_TOOL_OPTIONS": java_options} if java_options else {})},
    )  # fmt: skip
    assert ended.stdout, ended.stderr
    return {finding["check"]: finding for finding in json.loads(ended.stdout)["findings"]}


def test_validate_tries_the_login_of_java_too(door: Door, site: Site, topic: str) -> None:
    site.pipeline("events", [topic])
    site.fill(topic, 10)
    (_, before) = door.logins()
    sound = findings(site)
    assert [finding for finding in sound.values() if finding["status"] == "failed"] == []
    assert sound["spark_login"]["message"].endswith("has a login, sees 1 broker, and may ask for 1 topic")
    (_, after) = door.logins()
    assert after > before
    # What misleads Java alone is said of Java alone.
    broken = findings(site, door.misleading)
    assert broken["broker"]["status"] == "ok"
    assert broken["spark_login"]["status"] == "failed"
    assert "kafka.security.login" in broken["spark_login"]["fix"]
    assert "secret-of-another" not in json.dumps(broken)
