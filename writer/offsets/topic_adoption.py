"""Topic adoption: a pipeline goes on with topics that hold the same records under another id, name or offsets."""

from collections.abc import Mapping, Sequence
from datetime import datetime

from headrace.writer.clients import kafka_sample
from headrace.writer.clients.driver_endpoint import check_no_driver
from headrace.writer.clients.kafka import Topic, choose_topics
from headrace.writer.config.pipelines import Config
from headrace.writer.core.errors import ConfigError
from headrace.writer.core.offsets import Source, TopicPartition
from headrace.writer.offsets.log_check import fetch_log_ranges
from headrace.writer.offsets.spark_checkpoint import Checkpoints
from headrace.writer.offsets.start_decision import LogRange
from headrace.writer.offsets.topic_adoption_plan import (
    AdoptionPlan,
    AdoptionRequest,
    TopicMove,
    find_topic_moves,
    plan_adoption,
    to_json,
)
from headrace.writer.table.factory import main_table
from headrace.writer.table.kafka_timestamps import read_kafka_timestamps
from headrace.writer.table.log.commits.starts import Adoption
from headrace.writer.table.log.snapshot import PipelineSnapshot

# Of a partition, the last rows that the table has are compared.
_ROWS_COMPARED = 50
# Of a topic, partitions are compared that are spread over all.
_PARTITIONS_COMPARED = 16


class TopicAdoption:
    """The table and the topics of a pipeline, and the step that joins them."""

    def __init__(self, config: Config, pipeline: str) -> None:
        """Find the table and the topics. Raises ConfigError where there is no table, BrokerUnreachable."""
        self.config = config
        self.pipeline = pipeline
        self._table = main_table(pipeline, config)
        if not self._table.exists():
            raise ConfigError(
                f"pipeline {pipeline!r} has no table at {self._table.location}; there is nothing to go on with."
            )
        self._snapshot: PipelineSnapshot = self._table.snapshot()
        self._incarnations = self._snapshot.incarnations()
        self._cluster = kafka_sample.open_cluster(config.kafka)
        names = choose_topics(self._cluster, config.pipelines[pipeline].topics, self._incarnations).names
        self._topics: Mapping[str, Topic] = self._cluster.topics(names)

    def plan(self, request: AdoptionRequest, group: str | None) -> AdoptionPlan:
        """Plan the adoption. Raises ConfigError when the records cannot be those of the table, BrokerUnreachable.

        `group`: the consumer group whose committed offsets say where to read on, except for those of the request.
        """
        if group is not None:
            offsets = {**self._committed_offsets(group), **request.offsets}
            request = AdoptionRequest(request.renamed, offsets)
        moves = find_topic_moves(self._incarnations, self._topics, request)
        sources: list[Source] = []
        for move in moves:
            sources += [(move.topic, partition) for partition in range(self._topics[move.topic].partitions)]
        log_ranges = fetch_log_ranges(self._cluster, sources)
        same_records = self._compare_records(moves, log_ranges)
        return plan_adoption(moves, self._incarnations, self._snapshot.parts(), log_ranges, same_records, request)

    def carry_out(self, plan: AdoptionPlan, now: datetime) -> int:
        """Write the adoption. Returns the version that holds it. Raises CommitFailed, DriverAlive."""
        check_no_driver(self.config, self.pipeline, "Stop it, then adopt: it may commit once more.")
        # The runs up to this one read other offsets, and are not continued.
        newest_run = Checkpoints(self.config.checkpoints, self.pipeline, self.config.stores).newest() or 0
        facts = {"at": now.isoformat(), **to_json(plan)}
        operation = Adoption(plan.incarnations, plan.starts, newest_run, facts)
        return self._table.adopt(self._snapshot, operation)

    def _committed_offsets(self, group: str) -> dict[Source, int]:
        """Return the committed offsets of a group, of the topics whose id the table does not know."""
        topics = [topic for topic in self._topics.values() if topic.id not in self._incarnations.get(topic.name, ())]
        sources = [(topic.name, partition) for topic in topics for partition in range(topic.partitions)]
        return self._cluster.committed_offsets(group, sources)

    def _compare_records(self, moves: Sequence[TopicMove], log_ranges: Mapping[Source, LogRange]) -> dict[Source, bool]:
        """Return whether rows and records at the same offsets agree, for partitions where some can be compared."""
        same_records: dict[Source, bool] = {}
        for move in moves:
            if move.offsets != "kept":
                continue
            ends = {
                part: offset
                for part, offset in self._snapshot.parts().items()
                if (part.topic, part.incarnation) == (move.old, move.old_number)
            }
            step = max(1, len(ends) // _PARTITIONS_COMPARED)
            for part in sorted(ends)[::step]:
                source = (move.topic, part.partition)
                is_same = self._compare_partition(part, ends[part], source, log_ranges.get(source))
                if is_same is not None:
                    same_records[source] = is_same
        return same_records

    def _compare_partition(
        self, part: TopicPartition, table_end: int, source: Source, log_range: LogRange | None
    ) -> bool | None:
        """Return whether the timestamps of the last rows before `table_end` are those of the records at their offsets.

        None when there are none to compare: no rows so near the end, or Kafka does not hold them.
        """
        if log_range is None:
            return None
        start = max(table_end - _ROWS_COMPARED, log_range.earliest)
        if not start < table_end <= log_range.end:
            return None
        rows = read_kafka_timestamps(self._table, part, start, table_end)
        batch = kafka_sample.read(self.config.kafka, {source: (start, table_end)})
        # At most _ROWS_COMPARED, once a command.
        records = dict(zip(batch.column("offset").to_pylist(), batch.column("timestamp").to_pylist(), strict=True))
        if not rows.keys() & records.keys():
            return None
        return all(records.get(offset) == timestamp for offset, timestamp in rows.items())
