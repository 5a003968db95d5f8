"""The metrics of a pipeline as a process: its state, its starts and limits, Kafka's logs, and its receivers."""

from headrace.writer.web.metric_types import PARTITION, Metric, Reading, Value, Window, by_name, by_partition, plain


def _source_age(reading: Reading) -> list[Value]:
    samples = reading.view.logs.samples
    return reading.age(samples[-1].at if samples else reading.view.since)


PIPELINE_METRICS: tuple[Metric[Reading], ...] = (
    Metric(
        "headrace_build_info", "Always 1; the versions that run.", "1", Window.NOW, lambda _: [], ("version", "python")
    ),
    Metric(
        "headrace_config_last_reload_successful",
        "1 while the configuration file, as it was last read, is in force; 0: it was invalid, and changed nothing.",
        "1",
        Window.LAST_LOOK_AT_FILE,
        lambda _: [],
        (),
    ),
    Metric(
        "headrace_config_restart_needed",
        "Keys of the configuration file that differ from those in force, and hold from the next start of the process.",
        "keys",
        Window.LAST_LOOK_AT_FILE,
        lambda _: [],
        (),
    ),
    Metric(
        "headrace_pipeline_alive",
        "1 while the pipeline starts, runs, is paused or drains; 0 when it failed, ended, or another process has it.",
        "1",
        Window.NOW,
        plain(lambda r: float(r.view.state in ("starting", "running", "paused", "draining"))),
    ),
    Metric(
        "headrace_lease_waits",
        "1 while another process has the pipeline's lease: this driver begins it when that one has ended.",
        "1",
        Window.NOW,
        plain(lambda r: float(r.view.current_lease_wait is not None)),
    ),
    Metric(
        "headrace_paused",
        "1 while the pipeline is paused (`headrace pause`): it commits nothing, and its lag grows.",
        "1",
        Window.NOW,
        plain(lambda r: float(r.view.pause is not None)),
    ),
    Metric(
        "headrace_waits_for_registry",
        "1 while a batch waits for a schema that the registry does not know yet, or for its answer.",
        "1",
        Window.BATCH,
        plain(lambda r: float(r.view.registry_wait is not None)),
    ),
    Metric(
        "headrace_rate_limited",
        "1 while a batch waits for the rate limit: the pipeline may commit no more, and its lag may grow.",
        "1",
        Window.NOW,
        plain(lambda r: float(r.view.rate_limit.holds)),
    ),
    Metric(
        "headrace_rate_limit_records_per_second",
        "Records a second that the pipeline may commit, over time; not there without such a limit.",
        "records/second",
        Window.NOW,
        plain(lambda r: r.view.rate_limit.in_force.limit.records_per_s),
    ),
    Metric(
        "headrace_rate_limit_bytes_per_second",
        "Bytes of records' values a second that the pipeline may commit, over time; not there without such a limit.",
        "bytes/second",
        Window.NOW,
        plain(lambda r: r.view.rate_limit.in_force.limit.bytes_per_s),
    ),
    Metric(
        "headrace_rate_limit_wait_seconds_total",
        "Seconds that batches waited for the rate limit. They are in the phase wait, too.",
        "seconds",
        Window.SINCE_LAST_START,
        plain(lambda r: r.view.rate_limit.wait_seconds),
    ),
    Metric(
        "headrace_epoch",
        "Number of starts that the pipeline has had, from the table. Two drivers that rise in turn fence each other.",
        "starts",
        Window.LAST_START,
        plain(lambda r: r.view.epoch),
    ),
    Metric(
        "headrace_run_id",
        "Number of the checkpoint that the query uses; it rises with each new run.",
        "1",
        Window.LAST_START,
        plain(lambda r: r.view.run),
    ),
    Metric(
        "headrace_restarts_total",
        "Times that this driver started the pipeline again because a log of Kafka's changed under it.",
        "starts",
        Window.SINCE_DRIVER,
        plain(lambda r: r.view.restarts),
    ),
    Metric(
        "headrace_topic_restarts_total",
        "Starts of the query in this process because topics appeared that it is to read; no fault.",
        "starts",
        Window.SINCE_DRIVER,
        plain(lambda r: r.view.topic_restarts),
    ),
    Metric(
        "headrace_topics",
        "Topics that the pipeline reads.",
        "topics",
        Window.LAST_START,
        plain(lambda r: len(r.view.incarnations)),
    ),
    Metric(
        "headrace_topic_incarnation",
        "Number of the life of a topic's name that is read, from 1. Alert when it rises: the topic was deleted and "
        "created again.",
        "1",
        Window.LAST_START,
        by_name(lambda r: r.view.incarnations),
        ("pipeline", "topic"),
    ),
    Metric(
        "headrace_lag_offsets",
        "Offsets between the frontier and the end of the log.",
        "offsets",
        Window.LAST_LOOK_AT_KAFKA,
        by_partition(lambda lag: lag.offsets),
        PARTITION,
    ),
    Metric(
        "headrace_lag_seconds",
        "How long the oldest offset that is not committed has waited; 0 when nothing waits. Between two looks at Kafka "
        "the log is taken to grow evenly; what came more than an hour ago, or before the driver listened, is dated by "
        "its record timestamp, to 5 %.",
        "seconds",
        Window.LAST_LOOK_AT_KAFKA,
        by_partition(lambda lag: lag.seconds),
        PARTITION,
    ),
    Metric(
        "headrace_lag_source_age_seconds",
        "Seconds since Kafka last told where the logs end. Lag and headroom are blind when it grows.",
        "seconds",
        Window.NOW,
        _source_age,
    ),
    Metric(
        "headrace_retention_headroom_seconds",
        "Time until the topic's retention.ms takes the oldest offset that is not committed; below 0 it is due. Not "
        "there when nothing waits or the topic keeps records without a limit in time. retention.bytes is not reckoned.",
        "seconds",
        Window.LAST_LOOK_AT_KAFKA,
        by_partition(lambda lag: lag.headroom_seconds),
        PARTITION,
    ),
    Metric(
        "headrace_topic_retention_seconds",
        "The topic's retention.ms; not there where it keeps records without a limit in time, or does not say.",
        "seconds",
        Window.LAST_LOOK_AT_KAFKA,
        by_name(
            lambda r: {
                t: retention.total_seconds() for t, retention in r.view.logs.retention.items() if retention is not None
            }
        ),
        ("pipeline", "topic"),
    ),
    Metric(
        "headrace_retention_headroom_offsets",
        "Offsets between the beginning of the log and the frontier; below 0, so many were lost to retention.",
        "offsets",
        Window.LAST_LOOK_AT_KAFKA,
        by_partition(lambda lag: lag.headroom_offsets),
        PARTITION,
    ),
    Metric(
        "headrace_schemas",
        "Schemas that the pipeline knows, by decoder: native, single, or rejected (records go to the dead letters).",
        "schemas",
        Window.NOW,
        by_name(lambda r: r.view.schemas),
        ("pipeline", "decoder"),
    ),
    Metric(
        "headrace_telemetry_sent_total",
        "Commits of which a receiver (openlineage, opentelemetry) got its events or spans.",
        "commits",
        Window.SINCE_DRIVER,
        by_name(lambda r: {receiver: sent for receiver, (sent, _) in r.view.telemetry.items()}),
        ("pipeline", "receiver"),
    ),
    Metric(
        "headrace_telemetry_dropped_total",
        "Commits of which a receiver got nothing: it refused, did not answer, or too many waited.",
        "commits",
        Window.SINCE_DRIVER,
        by_name(lambda r: {receiver: dropped for receiver, (_, dropped) in r.view.telemetry.items()}),
        ("pipeline", "receiver"),
    ),
    Metric(
        "headrace_offset_commit_failures_total",
        "Times that the frontier could not be written to the consumer group of commit_offsets_to_group.",
        "commits",
        Window.SINCE_DRIVER,
        plain(lambda r: r.view.offset_commit_failures),
    ),
    Metric(
        "headrace_clock_steps_total",
        "Steps of the wall clock by half a second and more, either way; the log event clock_stepped says how far.",
        "steps",
        Window.SINCE_DRIVER,
        plain(lambda r: r.view.clock_steps),
    ),
)
