"""A server of tokens, a KDC, or STS that is down for longer than what they give lives: the pipeline waits, and goes on.

HEADRACE_OUTAGE_S=600 plays ten minutes, and prints its figures:

    HEADRACE_OUTAGE_S=600 .venv/bin/pytest -q -s tests/engines/test_token_outage.py -k oauth
"""

import itertools
import json
import os
import re
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, suppress
from dataclasses import dataclass, field
from datetime import timedelta
from pathlib import Path
from urllib.request import urlopen

import pytest

from headrace.writer.demo.devstack.kafka import create_topics
from tests.servers.aws_credentials import credential_server, web_identity
from tests.servers.kdc import REALM, USER, Kdc, kerberos_broker
from tests.servers.msk_proxy import REGION, msk_cluster
from tests.servers.oauth_broker import oauth_broker
from tests.servers.token_server import CLIENT_SECRET, TokenServer
from tests.support import oracle
from tests.support.oauth_site import SECRET_NAME, make_login_site, make_site, producing
from tests.support.supervisor_process import Supervised, supervise
from tests.support.writer_process import Site

OUTAGE_S = float(os.environ.get("HEADRACE_OUTAGE_S", "60"))
# Between two questions of a supervisor, or of a process that asks for tokens, at most.
PAUSE_S_MAX = 30
LIFE_S = 10
pytestmark = [pytest.mark.slow, pytest.mark.engines, pytest.mark.timeout(1_500 + 2 * OUTAGE_S)]


@dataclass(frozen=True)
class Login:
    """A site whose writer logs in by a server, and what its screens say while that is down."""

    site: Site
    stop: Callable[[], object]
    start: Callable[[], object]
    reason: str


def open_oauth(folder: Path, registry_url: str, stack: ExitStack) -> Login:
    """Return a login by tokens."""
    stack.enter_context(pytest.MonkeyPatch.context()).setenv(SECRET_NAME, CLIENT_SECRET)
    tokens = stack.enter_context(TokenServer(LIFE_S))
    broker = stack.enter_context(oauth_broker(folder / "broker", tokens))
    site = make_site(folder, broker, tokens, registry_url)
    return Login(site, tokens.stop, tokens.start, "no token: cannot reach")


def open_kerberos(folder: Path, registry_url: str, stack: ExitStack) -> Login:
    """Return a login by tickets."""
    kdc = stack.enter_context(Kdc(folder / "kdc", life=f"{2 * LIFE_S}s"))
    broker = stack.enter_context(kerberos_broker(folder / "broker", kdc, session_ms=500 * LIFE_S))
    login = {
        "type": "kerberos", "principal": f"{USER}@{REALM}", "keytab": str(kdc.keytab), "config_file": str(kdc.config),
    }  # fmt: skip
    site = make_login_site(folder, broker.bootstrap, broker.kerberos, registry_url, login)
    return Login(site, kdc.stop, kdc.start, "Check that the KDC is up")


def open_msk(folder: Path, registry_url: str, stack: ExitStack) -> Login:
    """Return a login of a role whose credentials STS gives, for ten seconds."""
    cluster = stack.enter_context(msk_cluster(folder / "broker", session_s=LIFE_S / 2))
    credentials = stack.enter_context(credential_server())
    credentials.life = timedelta(seconds=LIFE_S)
    cluster.proxy.keys = credentials.keys
    stack.enter_context(web_identity(folder, credentials))

    def stop() -> None:
        credentials.failure = (503, "ServiceUnavailable")

    def start() -> None:
        credentials.failure = None

    login = {"type": "msk_iam", "region": REGION}
    site = make_login_site(folder, cluster.bootstrap, cluster.iam, registry_url, login)
    return Login(site, stop, start, "AWS's chain of credentials gives none")


@pytest.fixture(params=[open_oauth, open_kerberos, open_msk], ids=["oauth", "kerberos", "msk_iam"])
def login(request: pytest.FixtureRequest, tmp_path: Path, registry_url: str) -> Iterator[Login]:
    with ExitStack() as stack:
        yield request.param(tmp_path, registry_url, stack)


@dataclass
class Screens:
    """What driver and supervisor show while the server is down."""

    # Why Kafka gives no answer, by the driver's `/status`, and why the pipeline does not run, by the supervisor's log.
    reasons: set[str] = field(default_factory=set)
    # What alerts look at: HeadraceLagUnknown and HeadraceLagHigh while the driver runs, then HeadraceUnhealthy.
    lag_age_s_max: float = 0.0
    lag_s_max: float = 0.0
    unhealthy_s_max: float = 0.0
    levels: set[float] = field(default_factory=set)


def metric(text: str, name: str) -> list[float]:
    """Return the values of a metric."""
    return [float(value) for value in re.findall(rf"^{name}(?:\{{.*\}})? (\S+)$", text, re.MULTILINE)]


def fetch(url: str) -> str:
    with urlopen(url, timeout=20) as answer:
        return str(answer.read().decode())


def watch(supervisor: Supervised, site: Site, seconds: float) -> Screens:
    """Look at the screens each second."""
    screens = Screens()
    end_s = time.monotonic() + seconds
    while time.monotonic() < end_s:
        assert supervisor.process.poll() is None, supervisor.output()
        text = supervisor.ask("/metrics")
        screens.unhealthy_s_max = max([screens.unhealthy_s_max, *metric(text, "headrace_recovery_unhealthy_seconds")])
        screens.levels |= set(metric(text, "headrace_recovery_level"))
        # While no driver runs, none answers.
        with suppress(OSError):
            url = json.loads((site.root / "checkpoints" / "events" / "driver.json").read_text())["url"]
            pipeline = json.loads(fetch(f"{url}/status"))["pipelines"]["events"]
            screens.reasons.add(pipeline["kafka_error"] or "")
            text = fetch(f"{url}/metrics")
            ages_s = metric(text, "headrace_lag_source_age_seconds")
            screens.lag_age_s_max = max([screens.lag_age_s_max, *ages_s])
            screens.lag_s_max = max([screens.lag_s_max, *metric(text, "headrace_lag_seconds")])
        time.sleep(1)
    screens.reasons |= set(re.findall(r"recovery_decided .* error=(.*) decided=", supervisor.output()))
    return screens


def has_reached(lake: Path, ends: Mapping[oracle.Source, int]) -> bool:
    """Look after a second whether the table has all records: who looks all the time takes a core from the writer."""
    time.sleep(1)
    return oracle.frontier_of(lake, "events") == ends


def test_a_server_of_logins_that_is_down_is_waited_for(login: Login) -> None:
    site = login.site
    create_topics(site.bootstrap, {"events": 2})
    lake = site.pipeline("events", ["events"], commit={"max_delay": "1 s"})
    messages = iter(site.values("events", 100_000))
    with supervise(site) as supervisor:
        with producing(lambda: site.send("events", itertools.islice(messages, 20))):
            supervisor.wait_for_commits(3)
            login.stop()
            screens = watch(supervisor, site, OUTAGE_S)
            login.start()
            up_s = time.monotonic()
            commits = supervisor.times("batch_committed")
            supervisor.until(lambda: supervisor.times("batch_committed") > commits, 240 + 2 * PAUSE_S_MAX)
            begun_s = time.monotonic()
        ends = site.ends("events")
        supervisor.until(lambda: has_reached(lake, ends), 240 + OUTAGE_S)
        caught_up_s = time.monotonic()
        assert supervisor.stop() == 0
    oracle.check(lake, "events", ends)
    print(
        f"\ndown for {OUTAGE_S:.0f} s; a commit {begun_s - up_s:.1f} s after its return, all after "
        f"{caught_up_s - up_s:.1f} s; {sum(ends.values()):,} records; {len(supervisor.drivers())} starts of a driver"
    )
    print(
        f"Kafka's last answer {screens.lag_age_s_max:.0f} s old, lag {screens.lag_s_max:.0f} s; "
        f"unhealthy for {screens.unhealthy_s_max:.0f} s"
    )
    assert any(login.reason in reason for reason in screens.reasons), screens.reasons
    # The driver's own token of Amazon MSK outlives STS: there the lag is known, and grows.
    assert max(screens.lag_age_s_max, screens.lag_s_max) + screens.unhealthy_s_max > 0.5 * OUTAGE_S
    assert screens.levels <= {0.0}, "no new run, and no new checkpoint"
