"""A server of tokens that is down for longer than tokens live: the pipeline waits, says so, and goes on.

HEADRACE_OUTAGE_S=600 plays ten minutes, and prints its figures:

    HEADRACE_OUTAGE_S=600 .venv/bin/pytest -q -s tests/engines/test_token_outage.py
"""

import itertools
import json
import os
import re
import time
from collections.abc import Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from urllib.request import urlopen

import pytest

from headrace.writer.demo.devstack.kafka import create_topics
from tests.servers.oauth_broker import OAuthBroker, oauth_broker
from tests.servers.token_server import CLIENT_SECRET, TokenServer
from tests.support import oracle
from tests.support.oauth_site import SECRET_NAME, make_site, producing
from tests.support.supervisor_process import Supervised, supervise
from tests.support.writer_process import Site

OUTAGE_S = float(os.environ.get("HEADRACE_OUTAGE_S", "60"))
# Between two questions of a supervisor, or of a process that asks for tokens, at most.
PAUSE_S_MAX = 30
LIFE_S = 10
pytestmark = [pytest.mark.slow, pytest.mark.engines, pytest.mark.timeout(1_500 + 2 * OUTAGE_S)]


@dataclass(frozen=True)
class Servers:
    """What a writer logs in to."""

    tokens: TokenServer
    broker: OAuthBroker


@pytest.fixture
def servers(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Servers]:
    monkeypatch.setenv(SECRET_NAME, CLIENT_SECRET)
    with TokenServer(LIFE_S) as tokens, oauth_broker(tmp_path / "broker", tokens) as broker:
        yield Servers(tokens, broker)


@dataclass
class Screens:
    """What driver and supervisor show while the server is down."""

    # Why Kafka gives no answer, by the driver's `/status`, and why the pipeline does not run, by the supervisor's log.
    reasons: set[str] = field(default_factory=set)
    # What alerts look at: HeadraceLagUnknown while the driver runs, HeadraceUnhealthy after it ended.
    lag_age_s_max: float = 0.0
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
            ages_s = metric(fetch(f"{url}/metrics"), "headrace_lag_source_age_seconds")
            screens.lag_age_s_max = max([screens.lag_age_s_max, *ages_s])
        time.sleep(1)
    screens.reasons |= set(re.findall(r"recovery_decided .* error=(.*) decided=", supervisor.output()))
    return screens


def has_reached(lake: Path, ends: Mapping[oracle.Source, int]) -> bool:
    """Look after a second whether the table has all records: who looks all the time takes a core from the writer."""
    time.sleep(1)
    return oracle.frontier_of(lake, "events") == ends


def test_a_server_of_tokens_that_is_down_is_waited_for(servers: Servers, registry_url: str, tmp_path: Path) -> None:
    site = make_site(tmp_path, servers.broker, servers.tokens, registry_url)
    create_topics(servers.broker.bootstrap, {"events": 2})
    lake = site.pipeline("events", ["events"], commit={"max_delay": "1 s"})
    messages = iter(site.values("events", 100_000))
    with supervise(site) as supervisor:
        with producing(lambda: site.send("events", itertools.islice(messages, 20))):
            supervisor.wait_for_commits(3)
            servers.tokens.stop()
            screens = watch(supervisor, site, OUTAGE_S)
            servers.tokens.start()
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
    print(f"Kafka's last answer {screens.lag_age_s_max:.0f} s old; unhealthy for {screens.unhealthy_s_max:.0f} s")
    assert any("no token: cannot reach" in reason for reason in screens.reasons), screens.reasons
    assert screens.lag_age_s_max + screens.unhealthy_s_max > 0.5 * OUTAGE_S
    assert screens.levels <= {0.0}, "no new run, and no new checkpoint"
