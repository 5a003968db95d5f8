"""A rate limit holds batches back, can be changed while the driver runs, and is shown wherever one looks."""

import json
from dataclasses import asdict
from datetime import datetime, timedelta
from io import StringIO
from pathlib import Path

import pytest
import yaml
from rich.console import Console
from typer.testing import CliRunner

from headrace.writer.cli.main import app
from headrace.writer.commit.batch_limits import limits
from headrace.writer.commit.rate_limit import RateLimit
from headrace.writer.config.sections.resource_limits import Commit
from headrace.writer.core.errors import Draining
from headrace.writer.output.entry_text import batch_end_reason, describe_rate_wait
from headrace.writer.output.status_screen import block, line
from headrace.writer.status import rate_limit
from headrace.writer.status.document import document
from headrace.writer.status.progress import Progress
from headrace.writer.status.rate_limit import OVERRIDE, EffectiveLimit, LimitState, Override, Throttle
from headrace.writer.storage.base import StoreError
from headrace.writer.storage.local import LocalStore
from headrace.writer.web.endpoints import answer
from tests.support.commits import LIMITS, NOON, account, facts
from tests.support.sample_records import config

HUNDRED = Commit.model_validate({"max_records_per_second": 100})
BY = Override("2026-11-20T12:00:00.000Z", "ada@ops", "the sink is small", 50, None)


@pytest.fixture
def store(tmp_path: Path) -> LocalStore:
    return LocalStore(str(tmp_path / "lake"))


class Clock:
    """The clocks of a throttle; waiting moves them on."""

    def __init__(self) -> None:
        self.s = 0.0
        self.stopped = False

    def now(self) -> datetime:
        return NOON + timedelta(seconds=self.s)

    def seconds(self) -> float:
        return self.s

    def wait(self, seconds: float) -> bool:
        self.s += seconds
        return self.stopped


def throttle(store: LocalStore, clock: Clock, commit: Commit = HUNDRED) -> tuple[Throttle, list[LimitState]]:
    seen: list[LimitState] = []
    made = Throttle(store, "clicks", commit, seen.append, now=clock.now, seconds=clock.seconds)
    made.begin([])
    return made, seen


def batch(records: int, at: datetime = NOON, value_bytes: int = 0) -> dict[str, object]:
    return {"ranges": [account(0, records)], "started": at.isoformat(), "value_bytes": value_bytes}


def test_a_batch_waits_until_the_one_before_is_paid_for(store: LocalStore) -> None:
    clock = Clock()
    one, seen = throttle(store, clock)
    one.hold(clock)
    assert clock.s == 0, "the first one does not wait"
    one.record_commit(batch(1_000))
    assert seen[-1].next_begin == NOON + timedelta(seconds=10)
    clock.s = 4
    one.hold(clock)
    assert clock.s == pytest.approx(10)
    assert [state.holds for state in seen if state.holds]
    assert not seen[-1].holds
    assert seen[-1].wait_seconds == pytest.approx(6)
    assert one.facts() == {
        "rate_limit": {"records_per_second": 100, "bytes_per_second": None, "held_seconds": pytest.approx(6)}
    }
    clock.s = 60
    one.hold(clock)
    assert one.facts()["rate_limit"]["held_seconds"] == 0


def test_bytes_count_as_well_and_the_slower_one_decides(store: LocalStore) -> None:
    clock = Clock()
    one, _ = throttle(store, clock, Commit(max_records_per_second=100, max_bytes_per_second="10 kB"))
    one.record_commit(batch(100, value_bytes=90_000))
    one.hold(clock)
    assert clock.s == pytest.approx(9)


def test_without_a_limit_nothing_waits_and_a_commit_says_nothing(store: LocalStore) -> None:
    clock = Clock()
    one, seen = throttle(store, clock, Commit())
    one.record_commit(batch(10**9))
    one.hold(clock)
    assert (clock.s, one.facts(), seen[-1].next_begin) == (0, {}, None)


def test_a_start_goes_on_with_the_last_commit_of_the_table(store: LocalStore) -> None:
    clock = Clock()
    one, _ = throttle(store, clock)
    one.begin([batch(1_000, NOON - timedelta(seconds=7)), batch(10**9)])
    one.hold(clock)
    assert clock.s == pytest.approx(3)
    clock.s = 0
    one.begin([batch(1_000, NOON + timedelta(days=1))])
    one.hold(clock)
    assert clock.s == pytest.approx(10), "no clock that was wrong makes it wait longer"


def test_another_limit_counts_at_once_and_a_stop_is_heeded(store: LocalStore) -> None:
    clock = Clock()
    one, seen = throttle(store, clock)
    one.record_commit(batch(1_000_000))
    clock.stopped = True
    with pytest.raises(Draining, match="while its rate limit held a batch"):
        one.hold(clock)
    rate_limit.save_override(store, BY)
    one.refresh()
    assert not seen[-1].holds
    assert seen[-1].in_force == EffectiveLimit(BY.limit, BY)
    clock.stopped = False
    rate_limit.save_override(store, Override(BY.at, BY.by, "", 10**9, None))
    one.refresh()
    clock.s = 5
    one.hold(clock)
    assert clock.s == 5
    rate_limit.remove_override(store)
    one.refresh()
    assert seen[-1].in_force == EffectiveLimit(RateLimit(100))


@pytest.mark.parametrize(
    "content", [b"", b"[]", b'{"records_per_second": 0}', json.dumps({**asdict(BY), "records_per_second": -1}).encode()]
)
def test_an_object_that_cannot_be_read_is_said_and_the_configuration_counts(store: LocalStore, content: bytes) -> None:
    store.put(OVERRIDE, content)
    clock = Clock()
    one, seen = throttle(store, clock)
    assert one.limit == RateLimit(100)
    assert "`headrace limit --off` removes it" in seen[-1].in_force.error
    assert seen[-1].in_force.text.startswith("100 records/s, by the configuration, ")


def test_a_storage_that_fails_leaves_the_limit_as_it_was(store: LocalStore) -> None:
    rate_limit.save_override(store, BY)
    one, _ = throttle(store, Clock())

    class Away(LocalStore):
        def read(self, name: str):
            raise StoreError("read", name, "it is away", "Wait.")

    one._store = Away(store.location)
    one.refresh()
    assert one.limit == BY.limit
    with pytest.raises(StoreError):
        one.begin([])


def test_a_batch_is_no_larger_than_the_limit_allows_in_its_delay() -> None:
    given = Commit.model_validate({"max_delay": "1 min", "max_offsets": 5_000})
    free = limits(given, 2**20, 64.0, once=False)
    assert (free.offsets_max, "offsets_max_from" in free.facts()) == (5_000, False)
    slow = limits(given, 2**20, 64.0, once=False, rate_limit=RateLimit(10))
    assert (slow.offsets_max, slow.offsets_min, slow.offsets_min_from) == (600, 600, "rate limit")
    assert slow.facts()["offsets_max_from"] == {"records_per_second": 10, "bytes_per_second": None}
    fat = {"rate_limit": RateLimit(None, 1_000.0), "once": True}
    assert limits(given, 2**20, 64.0, value_bytes_each=200.0, **fat).offsets_max == 300
    assert limits(given, 2**20, 64.0, value_bytes_each=None, **fat).offsets_max == 5_000, "not known yet"
    assert limits(given, 2**20, 64.0, rate_limit=RateLimit(10**6), once=False).facts() == free.facts()


def test_the_commit_explains_the_limit() -> None:
    limited = {**LIMITS, "offsets_max": 600, "offsets_max_from": {"records_per_second": 10, "bytes_per_second": None}}
    why = batch_end_reason(facts(0, 600, reason="backlog", waiting=700, limits=limited))
    assert "one commit takes 600 (10 records/s for commit.max_delay); 100 were left" in why
    limit = {"records_per_second": 10, "bytes_per_second": 2**20, "held_seconds": 59.6}
    assert describe_rate_wait(facts(0, 600, rate_limit=limit)) == (
        "it waited 1 min for the rate limit of 10 records/s and 1.0 MiB/s"
    )
    assert describe_rate_wait(facts(0, 600)) == ""


def limited_driver() -> dict[str, Progress]:
    progress = Progress("clicks")
    progress.record_start(epoch=1, run=1, frontier={}, limits={}, buckets=[], recent=[])
    progress.set_running()
    progress.set(
        rate_limit=LimitState(EffectiveLimit(BY.limit, BY), NOON + timedelta(seconds=12), holds=True, wait_seconds=3.25)
    )
    return {"clicks": progress}


def test_a_limit_is_shown_by_status_metrics_and_readiness() -> None:
    board = limited_driver()
    told = document([board["clicks"].view()], NOON)["pipelines"]["clicks"]
    assert told["rate_limit"] == {
        "records_per_second": 50, "bytes_per_second": None, "override": asdict(BY), "error": None, "holds": True,
        "wait_seconds": 3.25, "next_batch_in_seconds": 12.0,
    }  # fmt: skip
    out = StringIO()
    Console(file=out, width=200).print(block("clicks", told))
    assert (
        "50 records/s, by ada@ops since 2026-11-20 12:00:00 UTC: the sink is small; the next batch waits 12 s for it"
        in out.getvalue()
    )
    assert "rate_limit_records_per_second=50" in line("clicks", told, "now")
    text = answer("/metrics", "", board, NOON)[2].decode()
    assert 'headrace_rate_limited{pipeline="clicks"} 1.0' in text
    assert 'headrace_rate_limit_records_per_second{pipeline="clicks"} 50.0' in text
    assert "headrace_rate_limit_bytes_per_second{" not in text
    assert 'headrace_rate_limit_wait_seconds_total{pipeline="clicks"} 3.25' in text
    status, _, body = answer("/rolloutz", "", board, NOON)
    assert (status, "its rate limit holds the first batch back" in body.decode()) == (503, True)
    assert document([Progress("free").view()], NOON)["pipelines"]["free"]["rate_limit"] is None


def test_the_command_sets_shows_and_ends_it(tmp_path: Path) -> None:
    settings = config(tmp_path, commit={"max_records_per_second": 700})
    path = tmp_path / "headrace.yaml"
    path.write_text(yaml.safe_dump(settings.model_dump(mode="json", exclude_defaults=True)))

    def said(*words: str, code: int = 0) -> str:
        done = CliRunner().invoke(app, ["limit", str(path), *words])
        assert done.exit_code == code, done.output
        return " ".join(done.output.split())

    origin = "clicks: 700 records/s, by the configuration"
    assert said() == f"{origin}."
    set_ = said("--records-per-second", "50", "--by", "ada@ops", "--reason", "the sink is small")
    assert set_.startswith("clicks: 50 records/s, by ada@ops since ")
    assert set_.endswith(": the sink is small; it was 700 records/s, by the configuration.")
    told = json.loads(said("--bytes-per-second", "10 MB", "--json"))["pipelines"]["clicks"]
    assert (told["limit"]["records_per_second"], told["limit"]["bytes_per_second"]) == (None, 10_000_000)
    assert told["before"]["override"]["by"] == "ada@ops"
    assert said("--off").startswith(f"{origin}; it was 9.5 MiB/s, by ")
    assert "leave the rates out" in said("--off", "--records-per-second", "5", code=2)
    assert "needs a number and a unit" in said("--bytes-per-second", "10", code=2)
