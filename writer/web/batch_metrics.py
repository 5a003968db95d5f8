"""The metrics of batches and commits, and the sums over what they carried."""

from headrace.writer.batch.lateness import LATE_POLICIES
from headrace.writer.status.model import GAP_CAUSES, OUTCOMES
from headrace.writer.web.metric_types import Metric, Reading, Value, Window, by_name, plain


def _filter_counts(reading: Reading) -> list[Value]:
    filtered = reading.view.totals.filtered
    return [((spec, rule), records) for spec, rules in filtered.items() for rule, records in rules.items()]


def _target_rows(reading: Reading) -> dict[str, float]:
    sums = reading.view.totals.targets
    return {name: sums[name]["rows"] if name in sums else 0 for name in reading.view.targets}


BATCH_METRICS: tuple[Metric[Reading], ...] = (
    Metric(
        "headrace_commit_age_seconds",
        "Seconds since the newest commit, also of an earlier start. A topic without new records makes it grow too.",
        "seconds",
        Window.NOW,
        lambda r: r.age(r.view.committed_at),
    ),
    Metric(
        "headrace_commit_max_delay_seconds",
        "The key commit.max_delay: how long a record may wait for its commit to begin. Not there with `run --once`.",
        "seconds",
        Window.LAST_START,
        plain(lambda r: r.view.limits.get("delay_max_seconds")),
    ),
    Metric(
        "headrace_newest_event_age_seconds",
        "Now minus the newest event time of the last commits, also of an earlier start. Events from the future make it "
        "small, late ones do not grow it.",
        "seconds",
        Window.LAST_COMMIT,
        lambda r: r.since(r.view.event_time_newest),
    ),
    Metric(
        "headrace_batch_in_progress_seconds",
        "Seconds since the batch that is being carried began; 0 when none is.",
        "seconds",
        Window.BATCH,
        lambda r: [((), 0.0)] if r.view.batch is None else r.age(r.view.batch.began),
    ),
    Metric(
        "headrace_batch_last_duration_seconds",
        "Wall seconds of the last committed batch.",
        "seconds",
        Window.LAST_COMMIT,
        plain(lambda r: r.view.duration_last_seconds),
    ),
    Metric(
        "headrace_batch_duration_seconds",
        "Wall seconds of committed batches on the driver, from Spark's call to the end of redo.",
        "seconds",
        Window.SINCE_DRIVER,
        None,
    ),
    Metric(
        "headrace_driver_phase_seconds_total",
        "Wall seconds of the driver by phase: wait (between batches), look, queue (for other pipelines), "
        "tasks, commit, redo.",
        "seconds",
        Window.SINCE_DRIVER,
        by_name(lambda r: r.view.phases),
        ("pipeline", "phase"),
    ),
    Metric(
        "headrace_step_cpu_seconds_total",
        "Processor seconds of the tasks by step, of committed batches. The JVM's are not in it.",
        "seconds",
        Window.SINCE_DRIVER,
        by_name(lambda r: r.view.totals.steps),
        ("pipeline", "step"),
    ),
    Metric(
        "headrace_commits_total",
        "Commits by the reason why their batch ended: size, backlog, timeout, start, once, replay.",
        "commits",
        Window.SINCE_DRIVER,
        by_name(lambda r: r.view.totals.commits),
        ("pipeline", "reason"),
    ),
    Metric(
        "headrace_records_read_total",
        "Records read, of committed batches. Equals the sum of headrace_records_total over its outcomes.",
        "records",
        Window.SINCE_DRIVER,
        plain(lambda r: r.view.totals.records["read"]),
    ),
    Metric(
        "headrace_read_bytes_total",
        "Bytes of the values of records read, of committed batches: with their headers, as Kafka holds them.",
        "bytes",
        Window.SINCE_DRIVER,
        plain(lambda r: r.view.totals.value_bytes),
    ),
    Metric(
        "headrace_records_total",
        "Committed records by outcome: rows, late_table (rows of that table), dead_letters, quarantined, tombstones, "
        "filtered.",
        "records",
        Window.SINCE_DRIVER,
        by_name(lambda r: {name: n for name, n in r.view.totals.records.items() if name != "read"}, OUTCOMES[1:]),
        ("pipeline", "outcome"),
    ),
    Metric(
        "headrace_filtered_records_total",
        "Committed records that event specs left out, by spec and rule: where, sample.",
        "records",
        Window.SINCE_DRIVER,
        _filter_counts,
        ("pipeline", "spec", "rule"),
    ),
    Metric(
        "headrace_unfit_members_total",
        "Members of committed JSON values that fit no column, by what became of them: dropped (`columns.undeclared: "
        "drop`), nulled (`columns.misfit: null`; they are in `rest`).",
        "members",
        Window.SINCE_DRIVER,
        by_name(lambda r: r.view.totals.unfit_members),
        ("pipeline", "became"),
    ),
    Metric(
        "headrace_dead_letter_table_rows_total",
        "Rows committed to the dead-letter table: dead letters and quarantined records.",
        "rows",
        Window.SINCE_DRIVER,
        plain(lambda r: r.view.totals.records["dead_letters"] + r.view.totals.records["quarantined"]),
    ),
    Metric(
        "headrace_dead_letters_by_rule_total",
        "Dead letters by a rule of the configuration, not by a fault of theirs: late ones by "
        "seal.late, and records for which the route has no rule or whose table is over route.held.",
        "records",
        Window.SINCE_DRIVER,
        plain(lambda r: r.view.totals.dead_letters_by_rule),
    ),
    Metric(
        "headrace_late_rows_total",
        "Rows of committed batches whose bucket was closed, whatever became of them (seal.late).",
        "rows",
        Window.SINCE_DRIVER,
        plain(lambda r: r.view.totals.late_rows),
    ),
    Metric(
        "headrace_late_rows_by_policy_total",
        "Late rows of committed batches by what became of them: reopen (joined their bucket), late_table, dead_letter.",
        "rows",
        Window.SINCE_DRIVER,
        by_name(lambda r: r.view.totals.late.by_policy, LATE_POLICIES),
        ("pipeline", "policy"),
    ),
    Metric(
        "headrace_raw_records_total",
        "Committed records that are kept in the raw table, too.",
        "records",
        Window.SINCE_DRIVER,
        plain(lambda r: r.view.totals.raw_records),
    ),
    Metric(
        "headrace_raw_bytes_total",
        "Bytes of the files committed to the raw table.",
        "bytes",
        Window.SINCE_DRIVER,
        plain(lambda r: r.view.totals.raw_bytes),
    ),
    Metric(
        "headrace_raw_files_total",
        "Files committed to the raw table.",
        "files",
        Window.SINCE_DRIVER,
        plain(lambda r: r.view.totals.raw_files),
    ),
    Metric(
        "headrace_offsets_without_records_total",
        "Committed offsets that gave no record: transaction markers, or what compaction took. Else an alarm.",
        "offsets",
        Window.SINCE_DRIVER,
        plain(lambda r: r.view.totals.offsets_without_records),
    ),
    Metric(
        "headrace_files_total",
        "Parquet files committed to the table.",
        "files",
        Window.SINCE_DRIVER,
        plain(lambda r: r.view.totals.files),
    ),
    Metric(
        "headrace_bytes_total",
        "Bytes of the Parquet files committed to the table.",
        "bytes",
        Window.SINCE_DRIVER,
        plain(lambda r: r.view.totals.bytes),
    ),
    Metric(
        "headrace_staged_bytes_total",
        "Bytes of the files committed to the table and to the dead-letter table.",
        "bytes",
        Window.SINCE_DRIVER,
        plain(lambda r: r.view.totals.bytes + r.view.totals.dead_letter_bytes),
    ),
    Metric(
        "headrace_spilled_bytes_total",
        "Bytes that tasks of committed batches wrote to local disk because their budget was full.",
        "bytes",
        Window.SINCE_DRIVER,
        plain(lambda r: r.view.totals.spilled_bytes),
    ),
    Metric(
        "headrace_target_rows_total",
        "Rows committed for each table of a route.",
        "rows",
        Window.SINCE_DRIVER,
        by_name(_target_rows),
        ("pipeline", "target"),
    ),
    Metric(
        "headrace_gaps_total",
        "Gaps that this driver recorded, by cause: retention, latest. Each is one entry of the log, with its ranges.",
        "gaps",
        Window.SINCE_DRIVER,
        by_name(lambda r: r.view.totals.gaps, GAP_CAUSES),
        ("pipeline", "cause"),
    ),
    Metric(
        "headrace_gap_offsets_total",
        "Offsets of the gaps that this driver recorded, by cause: retention (they were gone), latest (skipped).",
        "offsets",
        Window.SINCE_DRIVER,
        by_name(lambda r: r.view.totals.gap_offsets, GAP_CAUSES),
        ("pipeline", "cause"),
    ),
)
