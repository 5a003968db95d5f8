"""The metrics of what the tables hold, their gaps, buckets and hooks, and the tables of a route."""

from collections.abc import Callable, Mapping
from datetime import datetime

from headrace.writer.sealing.bucket_states import BucketCounts
from headrace.writer.status.table_facts import GapFacts, TableContents
from headrace.writer.table.pipeline_tables import TargetState
from headrace.writer.web.metric_types import Metric, Reading, Value, Window, by_name, plain

_TARGET = ("pipeline", "target")


def _of_buckets(read: Callable[[BucketCounts], float]) -> Callable[[Reading], list[Value]]:
    """Read a count of the buckets; nothing before they were looked at, or where they are not sealed."""
    return plain(lambda r: None if r.view.bucket_counts is None else read(r.view.bucket_counts))


def _unsealed_by_state(reading: Reading) -> Mapping[str, float]:
    counts = reading.view.bucket_counts
    if counts is None:
        return {}
    return {"closed": counts.closed, "blocked": len(counts.blocked), "reopened": counts.reopened}


def _seals_by_kind(reading: Reading) -> Mapping[str, float]:
    counts = reading.view.bucket_counts
    if counts is None:
        return {}
    return {"first": counts.sealed - counts.resealed, "again": counts.resealed}


def _of_gaps(read: Callable[[GapFacts], float | None]) -> Callable[[Reading], list[Value]]:
    """Read a count of the gaps; nothing before the table was read."""
    return plain(lambda r: None if r.view.gaps is None else read(r.view.gaps))


def _since_bucket_time(read: Callable[[BucketCounts], datetime | None]) -> Callable[[Reading], list[Value]]:
    """Read the seconds since a time of the buckets; nothing while their counts are not known."""

    def values(reading: Reading) -> list[Value]:
        counts = reading.view.bucket_counts
        return [] if counts is None else reading.since(read(counts))

    return values


def _of_contents(read: Callable[[TableContents], float | None]) -> Callable[[Reading], list[Value]]:
    """Read a count of what the tables hold; nothing before they were counted."""
    return plain(lambda r: None if r.view.contents is None else read(r.view.contents))


def _of_targets(read: Callable[[TargetState], float]) -> Callable[[Reading], list[Value]]:
    return by_name(lambda reading: {name: read(state) for name, state in reading.view.targets.items()})


def _target_delays_s(reading: Reading) -> dict[str, float]:
    since = {name: state.pending.since or reading.now for name, state in reading.view.targets.items()}
    return {name: max(0.0, (reading.now - start).total_seconds()) for name, start in since.items()}


TABLE_METRICS: tuple[Metric[Reading], ...] = (
    Metric(
        "headrace_retention_waits",
        "Tables whose configured retention is shorter than the one in force, and waits for `headrace retention --yes`.",
        "tables",
        Window.LAST_LOOK_AT_FILE,
        plain(lambda r: len(r.view.retention_waits)),
    ),
    Metric(
        "headrace_watermark_delay_seconds",
        "Now minus the table's watermark. It grows while a partition is behind that is not idle (/status says which), "
        "and while nothing comes at all.",
        "seconds",
        Window.LAST_LOOK_AT_BUCKETS,
        _since_bucket_time(lambda counts: counts.watermark.instant),
    ),
    Metric(
        "headrace_closed_until_delay_seconds",
        "Now minus the instant by which buckets have to end to be closed.",
        "seconds",
        Window.LAST_LOOK_AT_BUCKETS,
        _since_bucket_time(lambda counts: counts.closed_until),
    ),
    Metric(
        "headrace_gaps_open",
        "Gaps of the table that are open: their records were neither brought back nor given up.",
        "gaps",
        Window.LAST_LOOK_AT_TABLE,
        _of_gaps(lambda gaps: gaps.open),
    ),
    Metric(
        "headrace_gap_offsets_open",
        "Offsets of the open gaps that were not brought back.",
        "offsets",
        Window.LAST_LOOK_AT_TABLE,
        _of_gaps(lambda gaps: gaps.offsets),
    ),
    Metric(
        "headrace_gap_offsets_closed_total",
        "Offsets of gaps that are over: brought by a backfill, given up, or taken back by a "
        "rewind. Its rate is that of a backfill.",
        "offsets",
        Window.TABLE_LIFE,
        _of_gaps(lambda gaps: gaps.offsets_closed),
    ),
    Metric(
        "headrace_gap_oldest_age_seconds",
        "Seconds since the oldest gap that is open was opened; not there when none is, or while that is not known.",
        "seconds",
        Window.LAST_LOOK_AT_TABLE,
        lambda r: [] if r.view.gaps is None else r.age(r.view.gaps.oldest),
    ),
    Metric(
        "headrace_target_behind_seconds",
        "Age of the oldest entry of the pipeline's log that a table of a route does not have: seconds since it was put "
        "together; 0 while none waits for it.",
        "seconds",
        Window.NOW,
        by_name(_target_delays_s),
        _TARGET,
    ),
    Metric(
        "headrace_target_applied_version",
        "Version of the pipeline's log up to which a table of a route has all that is its own.",
        "1",
        Window.NOW,
        _of_targets(lambda state: state.pending.applied),
        _TARGET,
    ),
    Metric(
        "headrace_target_waiting_entries",
        "Entries of the pipeline's log that a table of a route does not have yet.",
        "entries",
        Window.NOW,
        _of_targets(lambda state: state.pending.entries),
        _TARGET,
    ),
    Metric(
        "headrace_target_held_bytes",
        "Bytes of files that wait at the pipeline's log for a table of a route.",
        "bytes",
        Window.NOW,
        _of_targets(lambda state: state.pending.held_bytes),
        _TARGET,
    ),
    Metric(
        "headrace_max_held_bytes",
        "The key route.held.max_bytes: how many may wait for one table. Beyond it route.held.on_limit decides.",
        "bytes",
        Window.LAST_START,
        plain(lambda r: r.view.max_held_bytes),
    ),
    Metric(
        "headrace_names_without_table",
        "Names of a route that a rule matches and that have no table, since the start: refused (their location is "
        "taken), beyond_max (route.max_targets are made; 1,000 at most are counted).",
        "names",
        Window.SINCE_LAST_START,
        by_name(lambda r: r.view.without_table),
        ("pipeline", "reason"),
    ),
    Metric(
        "headrace_table_rows",
        "Rows that the table holds, whoever wrote them; not there for a route, or where another client does not say.",
        "rows",
        Window.LAST_LOOK_AT_TABLE,
        _of_contents(lambda contents: contents.rows),
    ),
    Metric(
        "headrace_table_files",
        "Files that the table holds; not there for a route.",
        "files",
        Window.LAST_LOOK_AT_TABLE,
        _of_contents(lambda contents: contents.files),
    ),
    Metric(
        "headrace_table_bytes",
        "Bytes of the files that the table holds; not there for a route.",
        "bytes",
        Window.LAST_LOOK_AT_TABLE,
        _of_contents(lambda contents: contents.bytes),
    ),
    Metric(
        "headrace_dead_letter_rows",
        "Rows that the dead-letter table holds: records that are still no rows.",
        "rows",
        Window.LAST_LOOK_AT_TABLE,
        _of_contents(lambda contents: contents.dead_letters),
    ),
    Metric(
        "headrace_table_count_age_seconds",
        "Seconds since rows, files, bytes and dead letters were counted; not there before the first count.",
        "seconds",
        Window.NOW,
        lambda r: [] if r.view.contents is None else r.age(r.view.contents.counted_at),
    ),
    Metric(
        "headrace_open_buckets",
        "Buckets of the table in the state open: they have rows, and were never closed. Not there without sealing.",
        "buckets",
        Window.LAST_LOOK_AT_BUCKETS,
        _of_buckets(lambda counts: counts.open),
    ),
    Metric(
        "headrace_unsealed_buckets",
        "Buckets that have no manifest of what they hold, by state: closed (about to be sealed), blocked (alert: a "
        "person must act), reopened (sealed, and changed since). Each is in one state; open ones are not counted.",
        "buckets",
        Window.LAST_LOOK_AT_BUCKETS,
        by_name(_unsealed_by_state),
        ("pipeline", "state"),
    ),
    Metric(
        "headrace_seals_total",
        "Manifests of this driver, by kind: first, or again after late rows and rewrites.",
        "buckets",
        Window.SINCE_LAST_START,
        by_name(_seals_by_kind, always=("first", "again")),
        ("pipeline", "kind"),
    ),
    Metric(
        "headrace_sealing_failing_steps",
        "Steps of sealing that fail and are tried again; /status says which and why.",
        "steps",
        Window.LAST_LOOK_AT_BUCKETS,
        _of_buckets(lambda counts: len(counts.trouble)),
    ),
    Metric(
        "headrace_hook_deliveries_total",
        "Sealed buckets that a hook was told of by this driver.",
        "deliveries",
        Window.SINCE_LAST_START,
        by_name(lambda r: {name: hook.delivered_since_start or 0 for name, hook in r.view.hooks.items()}),
        ("pipeline", "hook"),
    ),
    Metric(
        "headrace_hook_failures_total",
        "Attempts of a hook that failed; each is tried again.",
        "deliveries",
        Window.SINCE_LAST_START,
        by_name(lambda r: {name: hook.failures for name, hook in r.view.hooks.items()}),
        ("pipeline", "hook"),
    ),
    Metric(
        "headrace_hook_pending",
        "Deliveries that a hook has not done yet, those under way included.",
        "deliveries",
        Window.NOW,
        by_name(lambda r: {name: hook.waiting for name, hook in r.view.hooks.items()}),
        ("pipeline", "hook"),
    ),
    Metric(
        "headrace_hook_oldest_pending_seconds",
        "Seconds since the oldest bucket was sealed that a hook is still to be told of; 0 when none is.",
        "seconds",
        Window.NOW,
        by_name(
            lambda r: {
                name: 0.0 if hook.oldest is None else max(0.0, (r.now - hook.oldest).total_seconds())
                for name, hook in r.view.hooks.items()
            }
        ),
        ("pipeline", "hook"),
    ),
)
