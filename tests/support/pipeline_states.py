"""Facts of a pipeline in the states that a person meets at night, as a driver or the lake has them."""

from dataclasses import replace
from datetime import UTC, datetime, timedelta

from headrace.writer.clients.supervisor_record import HaltRecord, LeaseWait
from headrace.writer.core.offsets import OffsetRange, TopicPartition
from headrace.writer.hooks.outbox import Health
from headrace.writer.schemas.registry_hold import RegistryWait
from headrace.writer.sealing.retention_wait import RetentionWait
from headrace.writer.status.model import Commit, Logs, Sample, Totals, View
from headrace.writer.status.pause import Pause
from headrace.writer.status.table_facts import GapFacts, TableContents
from headrace.writer.table.ledger.gap_record import GapOpening, GapRecord
from headrace.writer.table.pipeline_tables import PendingSideEntries, TargetState
from tests.support.commits import LIMITS, facts

NOW = datetime(2026, 11, 20, 12, tzinfo=UTC)
_SOURCE = ("clicks", 0)
_HOUR = timedelta(hours=1)
_LEASED = "host/7 has its lease since 2026-11-20 11:51:00 UTC; it goes on by itself when that process has ended"
_FENCED = "another writer holds the table: epoch 4"


def _totals() -> Totals:
    totals = Totals()
    totals.add(facts(0, 400))
    return totals


def _logs(now: datetime, end: int, age: timedelta = timedelta(seconds=5)) -> Logs:
    return Logs((Sample(now - _HOUR, {_SOURCE: 0}), Sample(now - age, {_SOURCE: end})), {_SOURCE: 0})


def _gaps(now: datetime) -> GapFacts:
    opened = GapOpening(
        3, now - _HOUR, "latest", (OffsetRange(TopicPartition("clicks", 1, 0), 100, 400),), (), "", "", {}
    )
    return GapFacts(1, 300, 0, (GapRecord("0123456789abcdef", opened),), read_at=now)


def _retention_waits(now: datetime) -> dict[str, RetentionWait]:
    table = "s3://lake/clicks"
    wait = RetentionWait(
        table,
        configured=timedelta(days=4),
        in_force=timedelta(days=400),
        buckets=36,
        rows=1_100_000,
        bytes=11 * 2**20,
        oldest=now - timedelta(days=40),
    )
    return {table: wait}


def healthy(now: datetime = NOW) -> View:
    """Return a pipeline that runs, and has committed all that there is."""
    return View(
        "clicks",
        now - _HOUR,
        state="running",
        epoch=3,
        epoch_began=now - _HOUR,
        run=1,
        frontier={_SOURCE: 1_000},
        incarnations={"clicks": 1},
        limits=LIMITS,
        commits=(Commit(7, now - timedelta(seconds=30), facts(600, 1_000)),),
        committed_at=now - timedelta(seconds=30),
        totals=_totals(),
        logs=_logs(now, 1_000),
        gaps=GapFacts(0, 0, 0, (), read_at=now),
        contents=TableContents(now, 1_200_000, 41, 12 * 2**20, 17),
        hooks={"druid": Health("http://druid", delivered=40, delivered_since_start=3)},
        committed_since_start=True,
    )


def pipeline_states(now: datetime = NOW) -> dict[str, View]:
    """Return a pipeline in each state, by its name. Those of the lake begin with `lake`."""
    view = healthy(now)
    stale = _logs(now, 1_000, timedelta(minutes=10))
    failed = replace(view, state="failed", error=_FENCED, logs=stale, batch=None)
    lake = replace(view, state="unknown", hooks={"druid": Health("http://druid", delivered=40)})
    unknown_id = RegistryWait(("schema id 11",), now + timedelta(minutes=2))
    refused = RegistryWait(("schema id 11",), error="the registry refuses the login (401)")
    targets = {name: TargetState(f"s3://lake/{name}", PendingSideEntries(7)) for name in ("a", "b", "c")}
    return {
        "healthy": view,
        "fresh restart": replace(
            view,
            since=now,
            epoch_began=now,
            totals=Totals(),
            hooks={"druid": Health("http://druid", 40, 0, 0, None, "", 0)},
        ),
        "halted": replace(failed, halt=HaltRecord(now - timedelta(minutes=9), _FENCED)),
        "fenced": failed,
        "waits for its lease": replace(
            failed, state="waiting", error="", lease_wait=LeaseWait(now - timedelta(minutes=9), _LEASED)
        ),
        "held for a schema": replace(view, registry_wait=unknown_id),
        "registry 401": replace(view, registry_wait=refused),
        "paused": replace(view, state="paused", pause=Pause("2026-11-20T11:00:00+00:00", "ada", "a migration")),
        "retention waits": replace(view, retention_waits=_retention_waits(now)),
        "backlog": replace(view, logs=_logs(now, 61_000)),
        "gap open": replace(view, gaps=_gaps(now)),
        "storage down": replace(
            view,
            state="failed",
            error="cannot write to s3://lake/clicks: it does not answer",
            contents=replace(view.contents or TableContents(now, 0, 0, 0, 0), counted_at=now - timedelta(minutes=10)),
        ),
        "no Kafka": replace(view, logs=stale),
        "no token": replace(view, logs=stale, kafka_error="no login at broker:9093: no token: cannot reach id.test"),
        "Kafka never answered": replace(view, logs=Logs()),
        "route of three tables": replace(
            view, targets=targets, contents=TableContents(now, None, None, None, 17), max_held_bytes=2**30
        ),
        "lake without a driver": lake,
        "lake without Kafka": replace(lake, logs=Logs(), error="no Kafka broker answers"),
        "lake of a halted pipeline": replace(
            lake, state="failed", halt=HaltRecord(now - timedelta(minutes=9), _FENCED)
        ),
    }
