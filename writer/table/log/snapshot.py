"""One version of a table as a commit needs it: columns, offsets and epochs, without its files."""

import json
from collections.abc import Mapping, Sequence
from datetime import datetime
from typing import NamedTuple

import pyarrow as pa

from headrace.bucketers.zone_data import ZoneData
from headrace.writer.core.errors import ConfigError
from headrace.writer.core.log_mark import LogMark
from headrace.writer.core.offsets import OffsetRange, TopicPartition
from headrace.writer.core.pages import page_address
from headrace.writer.core.units import instant, microseconds
from headrace.writer.privacy.path_policies import PathPolicies, from_json
from headrace.writer.privacy.policy import fingerprint
from headrace.writer.table.log.log import State
from headrace.writer.table.log.zone_records import parse_zone_data

# Topic → ids of its incarnations, in order.
Incarnations = Mapping[str, Sequence[str]]
# With the pipeline's name: the table's name.
OWNER = "headrace/"
# Of the logs that headrace writes and reads.
FORMAT = 1
# Of all entries that headrace writes. docs/adr/0047-log-format-1.md says when a new one needs another format.
KINDS = (
    "start",
    "adopt",
    "take",
    "batch",
    "side",
    "columns",
    "schema",
    "gap",
    "fill",
    "lost",
    "replay",
    "rewrite",
    "reprocess",
    "rewind",
    "accept",
    "close",
    "seal",
    "targets",
    "raw",
    "specs",
    "privacy",
    "convert",
    "promote",
    "zones",
)
GAP_SUMS = ("gaps", "gap_offsets", "gaps_ended", "gap_offsets_ended")
# The value of a `txn` for no mark of a log, where it had one and lost it.
NO_MARK = -1
# The value of a `txn` for no instant, where it had one and goes back.
NEVER = -(2**62)
# Properties of the table.
INCARNATIONS = "headrace.incarnations"
TARGETS = "headrace.targets"
RAW = "headrace.raw"
SUPERSEDED = "headrace.superseded_by"
SIDE_TABLES = "headrace.side_tables"
# Of a table beside a log: the id of the one that was lost, in whose place it was put.
REPLACES = "headrace.replaces"
PROTECTED_PATHS = "headrace.protected_paths"
ZONE_DATA = "headrace.zone_data"


class LogFormatTooNew(ConfigError):
    """The table was written by a newer headrace, in a format that this one would misread."""


def check_format(transactions: Mapping[str, int], pipeline: str, location: str) -> None:
    """Raise LogFormatTooNew where the log has a format that this headrace does not know."""
    number = transactions.get(format_name(pipeline), FORMAT)
    if number > FORMAT:
        raise LogFormatTooNew(
            f"the log of the table at {location} has format {number}, this headrace knows formats up to {FORMAT}: "
            "a newer one wrote it. Run that one, or a newer one; there is no way back "
            f"({page_address('docs/UPGRADES.md')})."
        )


class TargetRecord(NamedTuple):
    """A table that a route fills, as the log of its pipeline has it."""

    # Of the route's rule, or the name that it was made for.
    name: str
    location: str
    format: str
    # The location of its table of late rows; empty: it never had one.
    late: str = ""
    # The id of the table; empty: it was not made yet.
    id: str = ""
    # The same of its table of late rows.
    late_id: str = ""
    # How rows map to its buckets.
    layout: str = ""
    # The name in the catalog; empty: of a format without.
    table: str = ""
    # The number by which the log knows it; 0: it does not yet.
    number: int = 0

    def to_json(self) -> dict[str, str]:
        """Write it as the log has it, by its number."""
        return {key: value for key, value in self._asdict().items() if key != "number"}


def targets_property(targets: Mapping[int, TargetRecord]) -> dict[str, str]:
    """Return the property of a log that says which tables its route fills, by number."""
    return {TARGETS: json.dumps({number: target.to_json() for number, target in targets.items()})}


class _Value:
    """The value of a `txn` of the pipeline, as an attribute of a snapshot."""

    def __init__(self, name: str, unset: int = 0) -> None:
        self._name = name
        self._unset = unset

    def __get__(self, snapshot: "PipelineSnapshot", _: type) -> int:
        return snapshot.state.transactions.get(f"{snapshot.pipeline}/{self._name}", self._unset)


class PipelineSnapshot:
    """One version of a table, its files left aside."""

    # Of the table's log; 0: no entry of headrace follows its first one.
    format = _Value("format")
    # The number of starts that this pipeline has had.
    epoch = _Value("epoch")
    # The epoch of the newest lease under which a supervisor had this pipeline started; 0: none.
    lease = _Value("lease")
    # The number of the run up to which none is continued.
    closed = _Value("closed")
    # The version up to which side files are known to be applied; -1: nothing is known.
    settled = _Value("settled", -1)
    # For a side table: the newest main version whose files it has; -1: none.
    applied = _Value("main", -1)
    # The number of replays of dead letters that the table has had.
    replays = _Value("replay")
    # The version of the last entry before it became an Iceberg table; -1: it did not.
    converted = _Value("converted", -1)
    # The number of rewinds that the table has had.
    rewinds = _Value("rewinds")
    # The version of the event specs; 0: there were never any.
    specs = _Value("specs")
    # Of the event specs of that version; 0: it has none.
    specs_fingerprint = _Value("specs_fingerprint")
    # The version of the privacy policies and their keys; 0: there were never any.
    privacy = _Value("privacy")
    # Of the policies of that version; 0: it has none.
    privacy_fingerprint = _Value("privacy_fingerprint")
    # Of the property that has the protected paths; 0: there are none.
    paths_fingerprint = _Value("protected_paths")
    # The fingerprint of the key that values are hashed with; 0: none ever was.
    hash_key = _Value("hash_key")
    # The fingerprint of the key that values are encrypted with; 0: none ever was.
    encryption_key = _Value("encryption_key")

    def __init__(self, state: State, pipeline: str) -> None:
        """Take a state of the table, and the name of the pipeline that it belongs to."""
        self.state = state
        self.pipeline = pipeline

    @property
    def version(self) -> int:
        """Version of the table."""
        return self.state.version

    def frontier(self, part: TopicPartition) -> int | None:
        """Return the first offset of this part that is not committed."""
        return self.state.transactions.get(app_id(self.pipeline, part))

    def parts(self) -> dict[TopicPartition, int]:
        """Return the frontier of every part that the table has one of."""
        frontiers = {}
        for name, value in self.state.transactions.items():
            # As `app_id` writes it: the pipeline, the topic with its incarnation, the partition.
            match name.split("/"):
                case [self.pipeline, topic_incarnation, partition]:
                    topic, _, incarnation = topic_incarnation.rpartition("@")
                    frontiers[TopicPartition(topic, int(incarnation), int(partition))] = value
        return frontiers

    def mark(self, part: TopicPartition) -> LogMark | None:
        """Return what the log is known by before the frontier of this part; None where that is not known."""
        epoch_name, fingerprint_name = mark_names(self.pipeline, part)
        fingerprint = self.state.transactions.get(fingerprint_name, NO_MARK)
        return None if fingerprint == NO_MARK else LogMark(self.state.transactions[epoch_name], fingerprint)

    def orphans(self) -> list[OffsetRange]:
        """Return the offsets whose rows are of records that Kafka lost when it cut a log, by partition."""
        orphans = []
        for part, frontier in sorted(self.parts().items()):
            cut_offset = self.state.transactions.get(cut_name(self.pipeline, part))
            if cut_offset is not None:
                orphans.append(OffsetRange(part, min(cut_offset, frontier), frontier))
        return orphans

    @property
    def gaps(self) -> tuple[int, int]:
        """Number of open gaps, and of their offsets that are neither filled nor given up."""
        sums = self.gap_sums
        return sums["gaps"] - sums["gaps_ended"], sums["gap_offsets"] - sums["gap_offsets_ended"]

    @property
    def gap_offsets_closed(self) -> int:
        """How many offsets of gaps are over: brought, given up, or taken back by a rewind."""
        return self.gap_sums["gap_offsets_ended"]

    @property
    def gap_sums(self) -> dict[str, int]:
        """How many gaps were ever recorded and ended, and how many offsets these were."""
        return {name: self.state.transactions.get(f"{self.pipeline}/{name}", 0) for name in GAP_SUMS}

    def gap_changes(self, gap: str) -> int:
        """Return the number of fills and losses that a gap has had, by the id of its gap record."""
        return self.state.transactions.get(gap_changes_name(self.pipeline, gap), 0)

    @property
    def closed_until(self) -> datetime | None:
        """Buckets that end at or before this instant take no more rows on time."""
        return self._instant(closed_name(self.pipeline, None))

    @property
    def closed_targets(self) -> dict[int, datetime]:
        """The same for each table of a route that has a bucket closed, by the number of the table."""
        instants = {number: self.closed_target(number) for number in self.targets()}
        return {number: until for number, until in instants.items() if until is not None}

    def closed_target(self, number: int) -> datetime | None:
        """Return the same for one table of a route."""
        return self._instant(closed_name(self.pipeline, number))

    @property
    def closed_ever(self) -> datetime | None:
        """The furthest that `closed_until` ever was: buckets that end by then may have manifests."""
        instants = (self._instant(f"{self.pipeline}/closed_ever"), self.closed_until)
        return max((until for until in instants if until is not None), default=None)

    def newest_event_time(self, part: TopicPartition) -> int | None:
        """Return the newest event time of the rows of this part, in microseconds since 1970."""
        event_time = self.state.transactions.get(event_time_name(self.pipeline, part), NEVER)
        return None if event_time == NEVER else event_time

    def columns(self) -> pa.Schema:
        """Columns with their Arrow types."""
        return self.state.columns()

    def incarnations(self) -> dict[str, list[str]]:
        """Topic → ids of its incarnations, in order."""
        return dict(json.loads(self.state.configuration.get(INCARNATIONS, "{}")))

    @property
    def raw_locations(self) -> list[str]:
        """Locations of the raw tables that records of the pipeline were ever kept in, oldest first."""
        return list(json.loads(self.state.configuration.get(RAW, "[]")))

    @property
    def table_id(self) -> str:
        """The id of the table."""
        return str(self.state.metadata["id"])

    @property
    def side_table_ids(self) -> dict[str, str]:
        """Ids of the tables of dead letters, late rows and raw records that were made beside it, by location.

        Those of a route's tables are in their records.
        """
        return dict(json.loads(self.state.configuration.get(SIDE_TABLES, "{}")))

    @property
    def replaces(self) -> str:
        """The id of the lost table in whose place a person had this one made; empty: of none."""
        return self.state.configuration.get(REPLACES, "")

    @property
    def protected_paths(self) -> dict[str, PathPolicies]:
        """Which paths of records schemas have said are to be protected, and which of them a person released.

        Raises ConfigError where another client changed the property.
        """
        paths = json.loads(self.state.configuration.get(PROTECTED_PATHS, "{}"))
        if fingerprint(paths) != self.paths_fingerprint:
            raise ConfigError(
                f"the property {PROTECTED_PATHS} of the table of pipeline {self.pipeline!r} is not as headrace wrote "
                "it: another client took it out, or went back to an older version. Without it fields would be in the "
                f"clear. Set it again as the table's history has it ({page_address('docs/PRIVACY.md')})."
            )
        return from_json(paths)

    @property
    def zone_data(self) -> dict[str, ZoneData]:
        """The data of time zones by which the newest rows got their buckets, by zone; none where none are recorded."""
        return parse_zone_data(self.state.configuration.get(ZONE_DATA))

    @property
    def superseded_by(self) -> str:
        """Location of the table that `headrace promote` put in its place; empty: none is."""
        return self.state.configuration.get(SUPERSEDED, "")

    @property
    def targets_by_location(self) -> dict[str, TargetRecord]:
        """The tables of a route with those of their late rows, by location."""
        targets = self.targets().values()
        late_tables = {target.late: target for target in targets if target.late}
        return late_tables | {target.location: target for target in targets}

    def targets(self) -> dict[int, TargetRecord]:
        """Tables that a route has filled or may fill, by their numbers; none where there is no route."""
        records = json.loads(self.state.configuration.get(TARGETS, "{}"))
        return {int(number): TargetRecord(**fields, number=int(number)) for number, fields in records.items()}

    def _instant(self, name: str) -> datetime | None:
        """Return the instant that a `txn` holds, in microseconds since 1970; None: it holds none."""
        value = self.state.transactions.get(name, NEVER)
        return None if value == NEVER else instant(value)


def format_name(pipeline: str) -> str:
    """Name of the `txn` that holds the format of the log."""
    return f"{pipeline}/format"


def app_id(pipeline: str, part: TopicPartition) -> str:
    """Name of a part's `txn` in the table."""
    return f"{pipeline}/{part.topic}@{part.incarnation}/{part.partition}"


def mark_names(pipeline: str, part: TopicPartition) -> tuple[str, str]:
    """Names of the `txn`s that hold the mark of a part's log: the leader epoch, and the fingerprint."""
    return f"{app_id(pipeline, part)}/leader_epoch", f"{app_id(pipeline, part)}/fingerprint"


def cut_name(pipeline: str, part: TopicPartition) -> str:
    """Name of the `txn` that holds the offset at which Kafka cut the log of a part: it goes on as another."""
    return f"{app_id(pipeline, part)}/cut"


def frontier_values(
    snapshot: PipelineSnapshot, offsets: Mapping[TopicPartition, int], marks: Mapping[TopicPartition, LogMark]
) -> dict[str, int]:
    """Return the `txn` values that set frontiers, with what the logs are known by there.

    A part without a mark loses the one that it had: that is of another offset.
    """
    values = {app_id(snapshot.pipeline, part): offset for part, offset in offsets.items()}
    for part in offsets:
        epoch_name, fingerprint_name = mark_names(snapshot.pipeline, part)
        mark = marks.get(part)
        if mark is not None:
            values |= {epoch_name: mark.leader_epoch, fingerprint_name: mark.fingerprint}
        elif snapshot.mark(part) is not None:
            values |= {epoch_name: NO_MARK, fingerprint_name: NO_MARK}
    return values


def event_time_name(pipeline: str, part: TopicPartition) -> str:
    """Name of the `txn` that holds a partition's newest event time, in microseconds since 1970."""
    return f"{app_id(pipeline, part)}/seen"


def closed_values(snapshot: PipelineSnapshot, until: datetime | None) -> dict[str, int]:
    """Return the `txn` values by which buckets are closed up to an instant, which may be before the one of today."""
    if until is None and snapshot.closed_ever is None:
        return {}
    ever = max(moment for moment in (snapshot.closed_ever, until) if moment is not None)
    return {
        f"{snapshot.pipeline}/closed_until": NEVER if until is None else microseconds(until),
        f"{snapshot.pipeline}/closed_ever": microseconds(ever),
    }


def closed_name(pipeline: str, target: int | None) -> str:
    """Name of the `txn` that holds how far buckets are closed: of the pipeline's own table, or of one of its route."""
    return f"{pipeline}/closed_until" if target is None else f"{pipeline}/target/{target}/closed_until"


def gap_changes_name(pipeline: str, gap: str) -> str:
    """Name of the `txn` that counts the changes of a gap."""
    return f"{pipeline}/gap/{gap}/changes"
