"""One version of a table as a commit needs it: columns, offsets and epochs, without its files."""

import json
from collections.abc import Mapping
from datetime import datetime
from typing import NamedTuple

import pyarrow as pa

from bucketers.zone_data import ZoneData
from writer.core.errors import ConfigError
from writer.core.offsets import LogMark, OffsetRange, TopicPartition
from writer.core.units import instant, microseconds
from writer.privacy.path_policies import PathPolicies, from_json
from writer.privacy.policy import fingerprint
from writer.table.log.log import State
from writer.table.log.zone_records import parse_zone_data

FORMAT = 1  # of the logs that headrace writes and reads
# Of all entries that headrace writes. docs/adr/0047-log-format-1.md says when a new one needs another format.
KINDS = (
    "start", "adopt", "take", "batch", "side", "columns", "schema", "gap", "fill", "lost", "replay", "rewrite",
    "reprocess", "rewind", "accept", "close", "seal", "targets", "raw", "specs", "privacy", "convert", "promote",
    "zones",
)  # fmt: skip


class TooNew(ConfigError):
    """The table was written by a newer headrace, in a format that this one would misread."""


def check_format(transactions: Mapping[str, int], pipeline: str, location: str) -> None:
    """Raise TooNew where the log has a format that this headrace does not know."""
    number = transactions.get(format_name(pipeline), FORMAT)
    if number > FORMAT:
        raise TooNew(
            f"the log of the table at {location} has format {number}, this headrace knows formats up to {FORMAT}: "
            "a newer one wrote it. Run that one, or a newer one; there is no way back (docs/UPGRADES.md)."
        )


GAP_SUMS = ("gaps", "gap_offsets", "gaps_ended", "gap_offsets_ended")
NO_MARK = -1  # what stands for no mark of a log where a `txn` had one and lost it
NEVER = -(2**62)  # what stands for no instant where a `txn` had one and goes back
# Properties of the table.
INCARNATIONS, TARGETS, RAW = "headrace.incarnations", "headrace.targets", "headrace.raw"
SUPERSEDED = "headrace.superseded_by"
PROTECTED_PATHS = "headrace.protected_paths"
ZONE_DATA = "headrace.zone_data"


class TargetRecord(NamedTuple):
    """A table that a route fills, as the log of its pipeline has it."""

    name: str  # of the route's rule, or the name that it was made for
    location: str
    format: str
    late: str = ""  # location of its table of late rows; empty: it never had one
    id: str = ""  # of the table; empty: it was not made yet
    layout: str = ""  # how rows map to its buckets
    table: str = ""  # name in the catalog; empty: of a format without
    number: int = 0  # by which the log knows it; 0: it does not yet

    def to_json(self) -> dict[str, str]:
        """Write it as the log has it, by its number."""
        return {key: value for key, value in self._asdict().items() if key != "number"}


def recorded(targets: Mapping[int, TargetRecord]) -> dict[str, str]:
    """Return the property of a log that says which tables its route fills, by number."""
    return {TARGETS: json.dumps({number: one.to_json() for number, one in targets.items()})}


class _Value:
    """The value of a `txn` of the pipeline, as an attribute of a snapshot."""

    def __init__(self, name: str, unset: int = 0) -> None:
        self._name, self._unset = name, unset

    def __get__(self, snapshot: "PipelineSnapshot", _: type) -> int:
        return snapshot.state.transactions.get(f"{snapshot.pipeline}/{self._name}", self._unset)


class PipelineSnapshot:
    """One version of a table, its files left aside."""

    format = _Value("format")  # of the table's log; 0: no entry of headrace follows its first one
    epoch = _Value("epoch")  # number of starts that this pipeline has had
    lease = _Value("lease")  # epoch of the newest lease under which a supervisor had this pipeline started; 0: none
    closed = _Value("closed")  # number of the run up to which none is continued
    settled = _Value("settled", -1)  # version up to which side files are known to be applied; -1: nothing is known
    applied = _Value("main", -1)  # for a side table: newest main version whose files it has; -1: none
    replays = _Value("replay")  # number of replays of dead letters that the table has had
    converted = _Value("converted", -1)  # version of the last entry before it became an Iceberg table; -1: it did not
    rewinds = _Value("rewinds")  # number of rewinds that the table has had
    specs = _Value("specs")  # version of the event specs; 0: there were never any
    specs_fingerprint = _Value("specs_fingerprint")  # of that version; 0: it has none

    privacy = _Value("privacy")  # version of the privacy policies and their keys; 0: there were never any
    privacy_fingerprint = _Value("privacy_fingerprint")  # of the policies of that version; 0: it has none
    paths_fingerprint = _Value("protected_paths")  # of the property that has the protected paths; 0: there are none
    hash_key = _Value("hash_key")  # fingerprint of the key that values are hashed with; 0: none ever was
    encryption_key = _Value("encryption_key")  # likewise, of the one that values are encrypted with

    def __init__(self, state: State, pipeline: str) -> None:
        self.state, self.pipeline = state, pipeline

    @property
    def version(self) -> int:
        """Version of the table."""
        return self.state.version

    def frontier(self, part: TopicPartition) -> int | None:
        """Return the first offset of this part that is not committed."""
        return self.state.transactions.get(app_id(self.pipeline, part))

    def parts(self) -> dict[TopicPartition, int]:
        """Every part that the table has a frontier of."""
        found = {}
        for name, at in self.state.transactions.items():
            owner, *rest = name.split("/")
            if owner == self.pipeline and len(rest) == 2:  # noqa: PLR2004 - as app_id writes it
                topic, _, incarnation = rest[0].rpartition("@")
                found[TopicPartition(topic, int(incarnation), int(rest[1]))] = at
        return found

    def mark(self, part: TopicPartition) -> LogMark | None:
        """Return what the log is known by before the frontier of this part; None where that is not known."""
        epoch_name, fingerprint_name = mark_names(self.pipeline, part)
        fingerprint = self.state.transactions.get(fingerprint_name, NO_MARK)
        return None if fingerprint == NO_MARK else LogMark(self.state.transactions[epoch_name], fingerprint)

    def orphans(self) -> list[OffsetRange]:
        """Return the offsets whose rows are of records that Kafka lost when it cut a log, by partition."""
        parts = sorted(self.parts().items())
        cuts = ((part, self.state.transactions.get(cut_name(self.pipeline, part)), end) for part, end in parts)
        return [OffsetRange(part, min(cut, end), end) for part, cut, end in cuts if cut is not None]

    @property
    def gaps(self) -> tuple[int, int]:
        """Number of open gaps, and of their offsets that are neither filled nor given up."""
        count, offsets = (self.gap_sums[name] for name in ("gaps", "gap_offsets"))
        return count - self.gap_sums["gaps_ended"], offsets - self.gap_sums["gap_offsets_ended"]

    @property
    def gap_offsets_closed(self) -> int:
        """How many offsets of gaps are over: brought, given up, or taken back by a rewind."""
        return self.gap_sums["gap_offsets_ended"]

    @property
    def gap_sums(self) -> dict[str, int]:
        """How many gaps were ever recorded and ended, and how many offsets these were."""
        return {name: self.state.transactions.get(f"{self.pipeline}/{name}", 0) for name in GAP_SUMS}

    def changes(self, gap: str) -> int:
        """Number of fills and losses that a gap has had, by the id of its gap record."""
        return self.state.transactions.get(changes_name(self.pipeline, gap), 0)

    @property
    def closed_until(self) -> datetime | None:
        """Buckets that end at or before this instant take no more rows on time."""
        return _instant(self.state.transactions.get(closed_name(self.pipeline, None), NEVER))

    @property
    def closed_targets(self) -> dict[int, datetime]:
        """The same for each table of a route that has a bucket closed, by the number of the table."""
        found = {number: self.closed_target(number) for number in self.targets()}
        return {number: until for number, until in found.items() if until is not None}

    def closed_target(self, number: int) -> datetime | None:
        """The same for one table of a route."""
        return _instant(self.state.transactions.get(closed_name(self.pipeline, number), NEVER))

    @property
    def closed_ever(self) -> datetime | None:
        """The furthest that `closed_until` ever was: buckets that end by then may have manifests."""
        before = _instant(self.state.transactions.get(f"{self.pipeline}/closed_ever", NEVER))
        return max((at for at in (before, self.closed_until) if at is not None), default=None)

    def seen(self, part: TopicPartition) -> int | None:
        """Return how far rows of this part have come, in microseconds since 1970."""
        at = self.state.transactions.get(seen_name(self.pipeline, part), NEVER)
        return None if at == NEVER else at

    def columns(self) -> pa.Schema:
        """Columns with their Arrow types."""
        return self.state.columns()

    def incarnations(self) -> dict[str, list[str]]:
        """Topic → ids of its incarnations, in order."""
        return dict(json.loads(self.state.configuration.get(INCARNATIONS, "{}")))

    @property
    def raw_places(self) -> list[str]:
        """Locations of the raw tables that records of the pipeline were ever kept in, oldest first."""
        return list(json.loads(self.state.configuration.get(RAW, "[]")))

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
                "clear. Set it again as the table's history has it (docs/PRIVACY.md)."
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
    def target_places(self) -> dict[str, TargetRecord]:
        """The tables of a route with those of their late rows, by location."""
        found = self.targets().values()
        return {**{one.late: one for one in found if one.late}, **{one.location: one for one in found}}

    def targets(self) -> dict[int, TargetRecord]:
        """Tables that a route has filled or may fill, by their numbers; none where there is no route."""
        raw = json.loads(self.state.configuration.get(TARGETS, "{}"))
        return {int(number): TargetRecord(**one, number=int(number)) for number, one in raw.items()}


def _instant(at: int) -> datetime | None:
    return None if at == NEVER else instant(at)


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


def seen_name(pipeline: str, part: TopicPartition) -> str:
    """Name of the `txn` that holds a partition's newest event time."""
    return f"{app_id(pipeline, part)}/seen"


def closed_values(snapshot: PipelineSnapshot, until: datetime | None) -> dict[str, int]:
    """Return the `txn` values by which buckets are closed up to an instant, which may be before the one of today."""
    if until is None and snapshot.closed_ever is None:
        return {}
    ever = max(at for at in (snapshot.closed_ever, until) if at is not None)
    return {
        f"{snapshot.pipeline}/closed_until": NEVER if until is None else microseconds(until),
        f"{snapshot.pipeline}/closed_ever": microseconds(ever),
    }


def closed_name(pipeline: str, target: int | None) -> str:
    """Name of the `txn` that holds how far buckets are closed: of the pipeline's own table, or of one of its route."""
    return f"{pipeline}/closed_until" if target is None else f"{pipeline}/target/{target}/closed_until"


def changes_name(pipeline: str, gap: str) -> str:
    """Name of the `txn` that counts the changes of a gap."""
    return f"{pipeline}/gap/{gap}/changes"
