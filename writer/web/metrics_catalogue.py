"""The catalogue of metrics, from which `/metrics` and docs/METRICS.md are made."""

from collections.abc import Callable, Mapping
from datetime import datetime

from writer.batch.lateness import LATE_POLICIES
from writer.sealing.bucket_states import BucketCounts
from writer.status.model import DECODERS, GAP_CAUSES, OUTCOMES
from writer.status.table_facts import TableContents
from writer.table.pipeline_tables import TargetState
from writer.web.metric_types import PARTITION, Metric, Reading, Value, by_name, by_partition, plain

_TARGET = ("pipeline", "target")


def _source_age(reading: Reading) -> list[Value]:
    samples = reading.view.logs.samples
    return reading.age(samples[-1].at if samples else reading.view.since)


def _of_buckets(
    read: Callable[[BucketCounts], Mapping[str, float]], always: tuple[str, ...]
) -> Callable[[Reading], list[Value]]:
    return by_name(lambda r: {} if r.view.bucket_counts is None else read(r.view.bucket_counts), always)


def _since_bucket_time(read: Callable[[BucketCounts], datetime | None]) -> Callable[[Reading], list[Value]]:
    """Read the seconds since a time of the buckets; nothing while their counts are not known."""

    def values(reading: Reading) -> list[Value]:
        counts = reading.view.bucket_counts
        return [] if counts is None else reading.since(read(counts))

    return values


def _of_contents(read: Callable[[TableContents], float | None]) -> Callable[[Reading], list[Value]]:
    """Read a count of what the tables hold; nothing before they were counted."""
    return plain(lambda r: None if r.view.contents is None else read(r.view.contents))


def _filter_counts(reading: Reading) -> list[Value]:
    filtered = reading.view.totals.filtered
    return [((spec, rule), records) for spec, rules in filtered.items() for rule, records in rules.items()]


def _of_targets(read: Callable[[TargetState], float]) -> Callable[[Reading], list[Value]]:
    return by_name(lambda reading: {name: read(state) for name, state in reading.view.targets.items()})


def _target_rows(reading: Reading) -> dict[str, float]:
    sums = reading.view.totals.targets
    return {name: sums[name]["rows"] if name in sums else 0 for name in reading.view.targets}


def _target_delays_s(reading: Reading) -> dict[str, float]:
    since = {name: state.pending.since or reading.now for name, state in reading.view.targets.items()}
    return {name: max(0.0, (reading.now - start).total_seconds()) for name, start in since.items()}


CATALOGUE: tuple[Metric[Reading], ...] = (
    Metric("headrace_build_info", "Always 1; the versions that run.", lambda _: [], ("version", "python")),
    Metric(
        "headrace_config_last_reload_successful",
        "1 while the configuration file, as it was last read, is in force; 0: it was invalid, and changed nothing.",
        lambda _: [],
        (),
    ),
    Metric(
        "headrace_config_restart_needed",
        "Keys of the configuration file that differ from those in force, and hold from the next start of the process.",
        lambda _: [],
        (),
    ),
    Metric(
        "headrace_pipeline_alive",
        "1 while the pipeline starts, runs, is paused or drains; 0 when it failed or ended.",
        plain(lambda r: float(r.view.state in ("starting", "running", "paused", "draining"))),
    ),
    Metric(
        "headrace_paused",
        "1 while the pipeline is paused (`headrace pause`): it commits nothing, and its lag grows.",
        plain(lambda r: float(r.view.pause is not None)),
    ),
    Metric(
        "headrace_waits_for_registry",
        "1 while a batch waits for a schema that the registry does not know yet, or for its answer.",
        plain(lambda r: float(r.view.registry_wait is not None)),
    ),
    Metric(
        "headrace_rate_limited",
        "1 while a batch waits for the rate limit: the pipeline may commit no more, and its lag may grow.",
        plain(lambda r: float(r.view.rate_limit.holds)),
    ),
    Metric(
        "headrace_rate_limit_records_per_second",
        "Records a second that the pipeline may commit, over time; not there without such a limit.",
        plain(lambda r: r.view.rate_limit.in_force.limit.records_per_s),
    ),
    Metric(
        "headrace_rate_limit_bytes_per_second",
        "Bytes of records' values a second that the pipeline may commit, over time; not there without such a limit.",
        plain(lambda r: r.view.rate_limit.in_force.limit.bytes_per_s),
    ),
    Metric(
        "headrace_rate_limit_wait_seconds_total",
        "Seconds that batches waited for the rate limit. They are in the phase wait, too.",
        plain(lambda r: r.view.rate_limit.wait_seconds),
    ),
    Metric(
        "headrace_retention_waits",
        "Tables whose configured retention is shorter than the one in force, and waits for `headrace retention --yes`.",
        plain(lambda r: len(r.view.retention_waits)),
    ),
    Metric(
        "headrace_epoch",
        "Number of starts that the pipeline has had, from the table. Two drivers that rise in turn fence each other.",
        plain(lambda r: r.view.epoch),
    ),
    Metric(
        "headrace_run_id",
        "Number of the checkpoint that the query uses; it rises with each new run.",
        plain(lambda r: r.view.run),
    ),
    Metric(
        "headrace_lag_records",
        "Offsets between the frontier and the end of the log.",
        by_partition(lambda lag: lag.offsets),
        PARTITION,
    ),
    Metric(
        "headrace_lag_seconds",
        "How long the oldest offset that is not committed has waited; 0 when nothing waits. Between two looks at Kafka "
        "the log is taken to grow evenly; what came more than an hour ago, or before the driver listened, is dated by "
        "its record timestamp, to 5 %.",
        by_partition(lambda lag: lag.seconds),
        PARTITION,
    ),
    Metric(
        "headrace_lag_source_age_seconds",
        "Seconds since Kafka last told where the logs end. Lag and headroom are blind when it grows.",
        _source_age,
    ),
    Metric(
        "headrace_retention_headroom_seconds",
        "Time until the topic's retention.ms takes the oldest offset that is not committed; below 0 it is due. Not "
        "there when nothing waits or the topic keeps records without a limit in time. retention.bytes is not reckoned.",
        by_partition(lambda lag: lag.headroom_seconds),
        PARTITION,
    ),
    Metric(
        "headrace_topic_retention_seconds",
        "The topic's retention.ms; not there where it keeps records without a limit in time, or does not say.",
        by_name(
            lambda r: {
                t: retention.total_seconds() for t, retention in r.view.logs.retention.items() if retention is not None
            }
        ),
        ("pipeline", "topic"),
    ),
    Metric(
        "headrace_retention_headroom_records",
        "Offsets between the beginning of the log and the frontier; below 0, so many were lost to retention.",
        by_partition(lambda lag: lag.headroom_offsets),
        PARTITION,
    ),
    Metric(
        "headrace_commit_age_seconds",
        "Seconds since the newest commit, also of an earlier start. A topic without new records makes it grow too.",
        lambda r: r.age(r.view.committed_at),
    ),
    Metric(
        "headrace_commit_max_delay_seconds",
        "commit.max_delay, for alerts: how long a record may wait for its commit to begin. Not with `run --once`.",
        plain(lambda r: r.view.limits.get("delay_max_seconds")),
    ),
    Metric(
        "headrace_newest_event_age_seconds",
        "Now minus the newest event time in the table. Events from the future make it small, late ones do not grow it.",
        lambda r: r.since(r.view.event_time_newest),
    ),
    Metric(
        "headrace_watermark_delay_seconds",
        "Now minus the table's watermark. It grows while a partition is behind that is not idle (/status says which), "
        "and while nothing comes at all.",
        _since_bucket_time(lambda counts: counts.watermark.instant),
    ),
    Metric(
        "headrace_closed_until_delay_seconds",
        "Now minus the instant by which buckets have to end to be closed.",
        _since_bucket_time(lambda counts: counts.closed_until),
    ),
    Metric(
        "headrace_batch_in_progress_seconds",
        "Seconds since the batch that is being carried began; 0 when none is.",
        lambda r: [((), 0.0)] if r.view.batch is None else r.age(r.view.batch.began),
    ),
    Metric(
        "headrace_batch_last_duration_seconds",
        "Wall seconds of the last committed batch.",
        plain(lambda r: r.view.duration_last_seconds),
    ),
    Metric(
        "headrace_batch_duration_seconds",
        "Wall seconds of committed batches on the driver, from Spark's call to the end of redo.",
        None,
    ),
    Metric(
        "headrace_driver_phase_seconds_total",
        "Wall seconds of the driver by phase: wait (between batches), look, queue (for other pipelines), "
        "tasks, commit, redo.",
        by_name(lambda r: r.view.phases),
        ("pipeline", "phase"),
    ),
    Metric(
        "headrace_step_cpu_seconds_total",
        "Processor seconds of the tasks by step, of committed batches. The JVM's are not in it.",
        by_name(lambda r: r.view.totals.steps),
        ("pipeline", "step"),
    ),
    Metric(
        "headrace_commits_total",
        "Commits by the reason why their batch ended: size, backlog, timeout, start, once, replay.",
        by_name(lambda r: r.view.totals.commits),
        ("pipeline", "reason"),
    ),
    Metric(
        "headrace_records_read_total",
        "Records read, of committed batches. Equals the sum of headrace_records_total over its outcomes.",
        plain(lambda r: r.view.totals.records["read"]),
    ),
    Metric(
        "headrace_read_bytes_total",
        "Bytes of the values of records read, of committed batches: Avro with its header, as Kafka holds it.",
        plain(lambda r: r.view.totals.value_bytes),
    ),
    Metric(
        "headrace_records_total",
        "Committed records by outcome: rows, late_table (rows of that table), dead_letters, quarantined, tombstones, "
        "filtered.",
        by_name(lambda r: {name: n for name, n in r.view.totals.records.items() if name != "read"}, OUTCOMES[1:]),
        ("pipeline", "outcome"),
    ),
    Metric(
        "headrace_filtered_records_total",
        "Committed records that event specs left out, by spec and rule: where, sample.",
        _filter_counts,
        ("pipeline", "spec", "rule"),
    ),
    Metric(
        "headrace_raw_records_total",
        "Committed records that are kept in the raw table, too.",
        plain(lambda r: r.view.totals.raw_records),
    ),
    Metric("headrace_raw_bytes_total", "Bytes of the raw table's files.", plain(lambda r: r.view.totals.raw_bytes)),
    Metric("headrace_raw_files_total", "Files committed to that table.", plain(lambda r: r.view.totals.raw_files)),
    Metric(
        "headrace_offsets_without_records_total",
        "Committed offsets that gave no record: transaction markers, or what compaction took. Else an alarm.",
        plain(lambda r: r.view.totals.offsets_without_records),
    ),
    Metric(
        "headrace_gaps_total",
        "Gaps recorded by this driver, by cause: retention, latest. Each is one entry of the log, with its ranges.",
        by_name(lambda r: r.view.totals.gaps, GAP_CAUSES),
        ("pipeline", "cause"),
    ),
    Metric(
        "headrace_gap_offsets_total",
        "Offsets of those gaps: records that Kafka no longer held when they were to be read.",
        by_name(lambda r: r.view.totals.gap_offsets, GAP_CAUSES),
        ("pipeline", "cause"),
    ),
    Metric(
        "headrace_gaps_open",
        "Gaps of the table that are open: their records were neither brought back nor given up.",
        plain(lambda r: r.view.gaps.open),
    ),
    Metric(
        "headrace_gap_offsets_open",
        "Offsets of the open gaps that were not brought back.",
        plain(lambda r: r.view.gaps.offsets),
    ),
    Metric(
        "headrace_gap_offsets_closed_total",
        "Offsets of gaps, over the table's life, that are over: brought by a backfill, given up, or taken back by a "
        "rewind. Its rate is that of a backfill.",
        plain(lambda r: r.view.gaps.offsets_closed),
    ),
    Metric(
        "headrace_gap_oldest_age_seconds",
        "Seconds since the oldest gap that is open was opened; not there when none is.",
        lambda r: r.age(r.view.gaps.oldest),
    ),
    Metric("headrace_target_rows_total", "Rows committed for each table of a route.", by_name(_target_rows), _TARGET),
    Metric(
        "headrace_target_behind_seconds",
        "Age of the oldest entry of the pipeline's log that a table of a route does not have: seconds since it was put "
        "together; 0 while none waits for it.",
        by_name(_target_delays_s),
        _TARGET,
    ),
    Metric(
        "headrace_target_applied_version",
        "Version of the pipeline's log up to which a table of a route has all that is its own.",
        _of_targets(lambda state: state.pending.applied),
        _TARGET,
    ),
    Metric(
        "headrace_target_waiting_entries",
        "Entries of the pipeline's log that a table of a route does not have yet.",
        _of_targets(lambda state: state.pending.entries),
        _TARGET,
    ),
    Metric(
        "headrace_target_held_bytes",
        "Bytes of files that wait at the pipeline's log for a table of a route.",
        _of_targets(lambda state: state.pending.held_bytes),
        _TARGET,
    ),
    Metric(
        "headrace_max_held_bytes",
        "route.held.max_bytes: how many may wait for one table. Beyond it route.held.on_limit decides.",
        plain(lambda r: r.view.max_held_bytes),
    ),
    Metric(
        "headrace_names_without_table",
        "Names of a route that a rule matches and that have no table, since the start: refused (their location is "
        "taken), beyond_max (route.max_targets are made; 1,000 at most are counted).",
        by_name(lambda r: r.view.without_table),
        ("pipeline", "reason"),
    ),
    Metric(
        "headrace_topics",
        "Topics that the pipeline reads.",
        plain(lambda r: len(r.view.incarnations)),
    ),
    Metric(
        "headrace_topic_restarts_total",
        "Starts of its query in this process because topics appeared that it is to read; no fault.",
        plain(lambda r: r.view.topic_restarts),
    ),
    Metric(
        "headrace_restarts_total",
        "Times that this driver started the pipeline again because a log of Kafka's changed under it.",
        plain(lambda r: r.view.restarts),
    ),
    Metric(
        "headrace_topic_incarnation",
        "Number of the life of a topic's name that is read, from 1. Alert when it rises: the topic was deleted and "
        "created again.",
        by_name(lambda r: r.view.incarnations),
        ("pipeline", "topic"),
    ),
    Metric(
        "headrace_dead_letter_table_rows_total",
        "Rows committed to the dead-letter table: dead letters and quarantined records.",
        plain(lambda r: r.view.totals.records["dead_letters"] + r.view.totals.records["quarantined"]),
    ),
    Metric(
        "headrace_dead_letters_by_rule_total",
        "Those of them that are dead letters by a rule of the configuration, not by a fault of theirs: late ones by "
        "seal.late, and records for which the route has no rule or whose table is over route.held.",
        plain(lambda r: r.view.totals.dead_letters_by_rule),
    ),
    Metric("headrace_files_total", "Parquet files committed to the table.", plain(lambda r: r.view.totals.files)),
    Metric("headrace_bytes_total", "Bytes of those files.", plain(lambda r: r.view.totals.bytes)),
    Metric(
        "headrace_staged_bytes_total",
        "Bytes of committed files, those of the dead-letter table included.",
        plain(lambda r: r.view.totals.bytes + r.view.totals.dead_letter_bytes),
    ),
    Metric(
        "headrace_spilled_bytes_total",
        "Bytes that tasks of committed batches wrote to local disk because their budget was full.",
        plain(lambda r: r.view.totals.spilled_bytes),
    ),
    Metric(
        "headrace_table_rows",
        "Rows that the table holds, whoever wrote them; not there for a route, or where another client does not say.",
        _of_contents(lambda contents: contents.rows),
    ),
    Metric(
        "headrace_table_files",
        "Files that the table holds; not there for a route.",
        _of_contents(lambda contents: None if contents.is_routed else contents.files),
    ),
    Metric(
        "headrace_table_bytes",
        "Bytes of these files.",
        _of_contents(lambda contents: None if contents.is_routed else contents.bytes),
    ),
    Metric(
        "headrace_dead_letter_rows",
        "Rows that the dead-letter table holds: records that are still no rows.",
        _of_contents(lambda contents: contents.dead_letters),
    ),
    Metric(
        "headrace_table_count_age_seconds",
        "Seconds since these were counted: the files of a large table are listed with pauses.",
        lambda r: [] if r.view.contents is None else r.age(r.view.contents.counted_at),
    ),
    Metric(
        "headrace_open_buckets",
        "Buckets of the table in the state open: they have rows, and were never closed.",
        plain(lambda r: r.view.buckets if r.view.bucket_counts is None else r.view.bucket_counts.open),
    ),
    Metric(
        "headrace_unsealed_buckets",
        "Buckets that have no manifest of what they hold, by state: closed (about to be sealed), blocked (alert: a "
        "person must act), reopened (sealed, and changed since). Each is in one state; open ones are not counted.",
        _of_buckets(
            lambda b: {"closed": b.closed, "blocked": len(b.blocked), "reopened": b.reopened},
            ("closed", "blocked", "reopened"),
        ),
        ("pipeline", "state"),
    ),
    Metric(
        "headrace_seals_total",
        "Manifests of this driver, by kind: first, or again after late rows and rewrites.",
        _of_buckets(lambda b: {"first": b.sealed - b.resealed, "again": b.resealed}, ("first", "again")),
        ("pipeline", "kind"),
    ),
    Metric(
        "headrace_sealing_failing_steps",
        "Steps of sealing that fail and are tried again; /status says which and why.",
        plain(lambda r: len(r.view.bucket_counts.trouble) if r.view.bucket_counts else 0),
    ),
    Metric(
        "headrace_late_rows_total",
        "Rows of committed batches whose bucket was closed, whatever became of them (seal.late).",
        plain(lambda r: r.view.totals.late_rows),
    ),
    Metric(
        "headrace_late_rows_by_policy_total",
        "The same by what became of them: reopen (joined their bucket), late_table, dead_letter.",
        by_name(lambda r: r.view.totals.late.by_policy, LATE_POLICIES),
        ("pipeline", "policy"),
    ),
    Metric(
        "headrace_schemas",
        "Schemas that the pipeline knows, by decoder: native, single, or rejected (records go to the dead letters).",
        by_name(lambda r: r.view.schemas, DECODERS),
        ("pipeline", "decoder"),
    ),
    Metric(
        "headrace_hook_deliveries_total",
        "Sealed buckets that a hook was told of by this driver.",
        by_name(lambda r: {name: hook.delivered_since_start or 0 for name, hook in r.view.hooks.items()}),
        ("pipeline", "hook"),
    ),
    Metric(
        "headrace_hook_failures_total",
        "Attempts of a hook that failed; each is tried again.",
        by_name(lambda r: {name: hook.failures for name, hook in r.view.hooks.items()}),
        ("pipeline", "hook"),
    ),
    Metric(
        "headrace_hook_pending",
        "Deliveries that a hook has not done yet, those under way included.",
        by_name(lambda r: {name: hook.waiting for name, hook in r.view.hooks.items()}),
        ("pipeline", "hook"),
    ),
    Metric(
        "headrace_hook_oldest_pending_seconds",
        "Seconds since the oldest bucket was sealed that a hook is still to be told of; 0 when none is.",
        by_name(
            lambda r: {
                name: 0.0 if hook.oldest is None else max(0.0, (r.now - hook.oldest).total_seconds())
                for name, hook in r.view.hooks.items()
            }
        ),
        ("pipeline", "hook"),
    ),
    Metric(
        "headrace_telemetry_sent_total",
        "Commits of which a receiver (openlineage, opentelemetry) got its events or spans.",
        by_name(lambda r: {receiver: sent for receiver, (sent, _) in r.view.telemetry.items()}),
        ("pipeline", "receiver"),
    ),
    Metric(
        "headrace_telemetry_dropped_total",
        "Commits of which a receiver got nothing: it refused, did not answer, or too many waited.",
        by_name(lambda r: {receiver: dropped for receiver, (_, dropped) in r.view.telemetry.items()}),
        ("pipeline", "receiver"),
    ),
    Metric(
        "headrace_offset_commit_failures_total",
        "Times that the frontier could not be written to the consumer group of commit_offsets_to_group.",
        plain(lambda r: r.view.offset_commit_failures),
    ),
    Metric(
        "headrace_clock_steps_total",
        "Steps of the wall clock by half a second and more, either way; the log event clock_stepped says how far.",
        plain(lambda r: r.view.clock_steps),
    ),
)
