"""A segment of the ledger: the outcome of every offset in a range of table versions. Segments add up. Pure.

A segment is read from entries of the log, or from the ledger that outlives them; segments that follow each other are
bound into one. Offsets are kept as the entries have them: what does not chain stays apart, so that it can be named.
"""

import json
import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from typing import Any
from urllib.parse import unquote

from writer.batch.task_report import EXITS, outcomes
from writer.core.errors import HeadraceError
from writer.core.offsets import TopicPartition
from writer.core.units import from_iso
from writer.table.ledger import gap_record
from writer.table.ledger.gap_record import GapRecord, part_of, together
from writer.table.log.entries import answered_changes, file_changes, parse_commit_info
from writer.table.log.foreign_writes import Change, foreign_change
from writer.table.log.log import Action

FORMAT = 1
_PART = re.compile(r"^(?P<topic>[^/]+)@(?P<incarnation>\d+)/(?P<partition>\d+)$")


class LedgerUnreadable(HeadraceError):
    """A page of the ledger is not what this version of headrace writes."""


@dataclass(frozen=True)
class CommittedRange:
    """Offsets [start, end) of one part that commits carried one after the other, and what became of them."""

    part: TopicPartition
    start: int
    end: int
    first: int  # versions of the table that hold it
    last: int
    outcomes: Mapping[str, int] = field(default_factory=dict)  # as task_report.outcomes has them
    without_records: int = 0  # offsets without a record, as the log held none there
    unexplained: int = 0  # offsets without a record, for an unchecked reason
    gap: bool = False  # skipped on purpose: a recorded gap
    specs: int = 0  # version of the specs by which its records were read; 0: there were none

    @property
    def sound(self) -> bool:
        """Each offset gave a record, is known to hold none, or lies in a gap; each record has one outcome."""
        read = self.outcomes.get("read", 0)
        without = self.end - self.start if self.gap else self.without_records + self.unexplained
        return self.end - self.start == read + without and read == sum(self.outcomes.get(name, 0) for name in EXITS)


@dataclass(frozen=True)
class Removal:
    """Rows that another client or a command removed from the table; None: their number is unknown."""

    version: int
    operation: str
    rows: int | None


@dataclass(frozen=True)
class RewoundRange:
    """The frontier of a part returned from `end` to `start`: what was committed between counts as taken."""

    part: TopicPartition
    version: int
    start: int
    end: int


@dataclass(frozen=True)
class CutRange:
    """Offsets [start, end) whose rows are of records that Kafka lost when it cut the log of a part."""

    part: TopicPartition
    version: int
    start: int
    end: int
    successor: int  # number of the incarnation that goes on from `start`
    is_proven: bool  # exactly these; else some of them may be in Kafka still, and come again


@dataclass(frozen=True)
class Answer:
    """The decision about another client's changes. `accepted`: they stay; else they were undone."""

    version: int
    changes: tuple[str, ...]  # each as `strange` has it
    accepted: bool


@dataclass(frozen=True)
class LedgerSegment:
    """Entries [first, last] of a table's log, both included, as an account of offsets."""

    first: int
    last: int
    began: datetime | None = None
    ended: datetime | None = None
    starts: int = 0
    begins: Mapping[TopicPartition, int] = field(default_factory=dict)  # where parts begin that were new here
    committed_ranges: tuple[CommittedRange, ...] = ()
    moves: Mapping[TopicPartition, Mapping[str, int]] = field(
        default_factory=dict
    )  # what replays and reprocesses changed of the outcomes
    removals: tuple[Removal, ...] = ()
    strange: tuple[str, ...] = ()  # what the account does not survive, each as a phrase
    adopted: int | None = None  # rows that were there when the table was taken over; None: it was not, here
    gap_records: Mapping[str, GapRecord] = field(default_factory=dict)  # of gaps, by these entries
    backs: tuple[RewoundRange, ...] = ()  # where rewinds took the frontier back
    answers: tuple[Answer, ...] = ()
    filtered: Mapping[str, Mapping[str, int]] = field(default_factory=dict)  # left out by specs, by spec and rule
    cuts: tuple[CutRange, ...] = ()  # of logs that Kafka cut

    @property
    def accepts(self) -> bool:
        """It ends with an entry that accepts what other clients did."""
        return bool(self.answers) and self.answers[-1].accepted and self.answers[-1].version == self.last


Known = Callable[[int], Mapping[str, int | None]]  # version → rows of each file that it names


def nothing_known(_: int) -> Mapping[str, int | None]:
    """Know the rows of no file."""
    return {}


def segments(
    entries: Iterable[tuple[int, Sequence[Action]]], pipeline: str, known: Known = nothing_known
) -> Iterator[LedgerSegment]:
    """Read entries, oldest first: a segment of each. `known` is asked where an entry does not say what it took."""
    for version, actions in entries:
        try:
            yield _of(version, actions, pipeline, known)
        except (KeyError, TypeError, ValueError) as error:
            yield LedgerSegment(
                version, version, strange=(f"version {version} says nothing that can be read: {error!r}",)
            )


def runs(each: Iterable[LedgerSegment]) -> list[LedgerSegment]:
    """Bind the segments that follow each other. Where versions are missing between them, a new one begins.

    So it does after an acceptance: what follows is proven apart.
    """
    found: list[list[LedgerSegment]] = []
    for one in each:
        if found and found[-1][-1].last + 1 == one.first and not found[-1][-1].accepts:
            found[-1].append(one)
        else:
            found.append([one])
    return [bound(group) for group in found]


def since_adoption(segments: Sequence[LedgerSegment]) -> list[LedgerSegment]:
    """Return the segments with nothing in those before the table was taken over: another writer's are no account."""
    at = max((at for at, one in enumerate(segments) if one.adopted is not None), default=0)
    return [*(LedgerSegment(one.first, one.last, one.began, one.ended) for one in segments[:at]), *segments[at:]]


def bound(segments: Sequence[LedgerSegment]) -> LedgerSegment:
    """Put segments together that follow each other."""
    segments = since_adoption(segments)
    begins, moves = begun(segments)
    return LedgerSegment(
        first=segments[0].first, last=segments[-1].last,
        began=next((c.began for c in segments if c.began), None),
        ended=next((c.ended for c in reversed(segments) if c.ended), None),
        starts=sum(c.starts for c in segments), begins=begins,
        committed_ranges=_joined(s for c in segments for s in c.committed_ranges),
        moves=moves, removals=tuple(r for c in segments for r in c.removals),
        strange=tuple(text for c in segments for text in c.strange),
        adopted=next((c.adopted for c in segments if c.adopted is not None), None),
        gap_records=together(c.gap_records for c in segments),
        backs=tuple(back for c in segments for back in c.backs),
        answers=tuple(answer for c in segments for answer in c.answers), filtered=filtered_in(segments),
        cuts=tuple(cut for c in segments for cut in c.cuts),
    )  # fmt: skip


def begun(segments: Iterable[LedgerSegment]) -> tuple[dict[TopicPartition, int], dict[TopicPartition, dict[str, int]]]:
    """Return where parts begin first, and what replays and reprocesses changed of their outcomes in all."""
    begins: dict[TopicPartition, int] = {}
    moves: dict[TopicPartition, dict[str, int]] = {}
    for one in segments:
        begins |= {part: at for part, at in one.begins.items() if part not in begins}
        for part, changed in one.moves.items():
            mine = moves.setdefault(part, {})
            mine.update({name: mine.get(name, 0) + count for name, count in changed.items()})
    return begins, moves


def filtered_in(segments: Iterable[LedgerSegment]) -> dict[str, dict[str, int]]:
    """Add up what specs left out, by spec and rule."""
    found: dict[str, dict[str, int]] = {}
    for one in segments:
        for spec, rules in one.filtered.items():
            mine = found.setdefault(spec, {})
            mine.update({rule: mine.get(rule, 0) + records for rule, records in rules.items()})
    return found


def _joined(committed_ranges: Iterable[CommittedRange]) -> tuple[CommittedRange, ...]:
    """Join what touches and is sound, part by part; the rest stays as it is."""
    done: list[CommittedRange] = []
    newest: dict[TopicPartition, int] = {}  # where in `done` a part's last stretch is
    for one in committed_ranges:
        at = newest.get(one.part)
        before = None if at is None else done[at]
        alike = before and (before.gap, before.specs) == (one.gap, one.specs)
        if before and alike and before.end == one.start and before.sound and one.sound:
            names = before.outcomes.keys() | one.outcomes.keys()
            assert at is not None
            done[at] = replace(
                before, end=one.end, last=one.last, without_records=before.without_records + one.without_records,
                unexplained=before.unexplained + one.unexplained,
                outcomes={name: before.outcomes.get(name, 0) + one.outcomes.get(name, 0) for name in sorted(names)},
            )  # fmt: skip
        else:
            newest[one.part] = len(done)
            done.append(one)
    return tuple(done)


def _of(version: int, actions: Sequence[Action], pipeline: str, known: Known) -> LedgerSegment:
    info, about = parse_commit_info(actions)
    at = datetime.fromtimestamp(info["timestamp"] / 1000, UTC) if "timestamp" in info else None
    one = LedgerSegment(version, version, at, at)
    match about.get("kind"):
        case "start" | "adopt":
            starts = int(about["kind"] == "start")
            found = about.get("cuts", ())
            cuts = tuple(_cut_from_json({**cut, "version": version}) for cut in found)
            return replace(one, starts=starts, begins=_moved(actions, pipeline), cuts=cuts)
        case "side":  # dead letters: their main commit has the account, but for how many a rewind took
            return replace(one, removals=_taken(version, about))
        case "batch":
            specs = about.get("specs", {}).get("version", 0)
            carried = (_carried(account, version, specs) for account in about.get("ranges", ()))
            return replace(one, committed_ranges=tuple(carried), filtered=_filtered(about))
        case "gap":
            skipped = (
                CommittedRange(part_of(r), r["start"], r["end"], version, version, gap=True) for r in about["ranges"]
            )
            return replace(one, committed_ranges=tuple(skipped), gap_records=gap_record.records_of(version, about))
        case "fill" | "lost":
            return replace(one, gap_records=gap_record.records_of(version, about), filtered=_filtered(about))
        case "replay" | "reprocess":
            moves = {part_of(m): {k: m[k] for k in EXITS if m.get(k)} for m in about["moves"]}
            return replace(one, moves=moves, filtered=_filtered(about))
        case "take":
            return replace(one, adopted=int(about["rows"]))
        case "rewrite":
            return replace(one, removals=_taken(version, about))
        case "rewind":
            backs = (RewoundRange(part_of(r), version, r["start"], r["end"]) for r in about["ranges"])
            return replace(
                one, removals=_taken(version, about), backs=tuple(backs), gap_records=gap_record.rewound(version,
                about), answers=_answered(version, about, accepted=False),
            )  # fmt: skip
        case "accept":
            return replace(one, removals=_taken(version, about), answers=_answered(version, about, accepted=True))
        case None:
            return replace(one, **_foreign(version, info, actions, known))
        case kind if file_changes(actions) or _moved(actions, pipeline):
            return replace(one, strange=(f"version {version} is of the kind {kind!r}, which a newer headrace writes",))
        case _:
            return one  # such as new columns: neither rows nor offsets


def _moved(actions: Sequence[Action], pipeline: str) -> dict[TopicPartition, int]:
    """Return the frontiers that an entry sets."""
    frontiers = {}
    for action in actions:
        txn = action.get("txn") or {}
        owner, _, name = txn.get("appId", "").partition("/")
        found = _PART.match(name)
        if owner == pipeline and found:
            part = TopicPartition(found["topic"], int(found["incarnation"]), int(found["partition"]))
            frontiers[part] = txn["version"]
    return frontiers


def _filtered(about: Mapping[str, Any]) -> Mapping[str, Mapping[str, int]]:
    return dict(about.get("specs", {}).get("filtered", {}))


def _carried(account: Mapping[str, Any], version: int, specs: int) -> CommittedRange:
    found = outcomes(account)
    missing = account["end"] - account["start"] - found["read"]
    explained = account.get("without_records", {}).get("offsets", 0)
    return CommittedRange(
        part_of(account), account["start"], account["end"], version, version, found,
        without_records=explained, unexplained=0 if explained else max(0, missing), specs=specs,
    )  # fmt: skip


def _taken(version: int, about: Mapping[str, Any]) -> tuple[Removal, ...]:
    """Return the rows that a rewrite took on purpose; where they only moved there are none."""
    found = about.get("taken")
    return (Removal(version, str(found["why"]), int(found["rows"])),) if found and found["rows"] else ()


def _foreign(version: int, info: Mapping[str, Any], actions: Sequence[Action], known: Known) -> dict[str, Any]:
    if (found := foreign_change(info, version)) is not None:
        return {"strange": (_strange(found),)}
    operation = str(info.get("operation"))
    if operation != "DELETE" or not any("remove" in action for action in actions):
        return {}
    metrics = info.get("operationMetrics", {})
    deleted = next((metrics[name] for name in ("numDeletedRows", "num_deleted_rows") if name in metrics), None)
    rows = int(deleted) if deleted is not None else _fewer(actions, known(version - 1))
    return {"removals": (Removal(version, operation, rows),)}


def _answered(version: int, about: Mapping[str, Any], *, accepted: bool) -> tuple[Answer, ...]:
    changes = tuple(map(_strange, answered_changes(about)))
    return (Answer(version, changes, accepted),) if changes else ()


def _strange(found: Change) -> str:
    return f"{found}: rows moved, offsets did not"


def _fewer(actions: Sequence[Action], before: Mapping[str, int | None]) -> int | None:
    """Rows of the files that an entry removes, less those of the files that it adds; None where one does not say."""
    rows: list[int | None] = []
    for action in actions:
        match action:
            case {"remove": {"path": path}}:
                rows.append(before.get(unquote(path)))
            case {"add": {"stats": stats}}:
                rows_added = json.loads(stats or "{}").get("numRecords")
                rows.append(None if rows_added is None else -rows_added)
    return None if None in rows else sum(row or 0 for row in rows)


def to_json(one: LedgerSegment, pipeline: str, table_id: str) -> dict[str, Any]:
    """Write a segment as JSON values: a page of the ledger."""
    return {
        "format": FORMAT, "pipeline": pipeline, "table": table_id, "first": one.first, "last": one.last,
        "began": one.began and one.began.isoformat(), "ended": one.ended and one.ended.isoformat(),
        "starts": one.starts,
        "begins": [{**vars(part), "offset": at} for part, at in one.begins.items()],
        "committed_ranges": [{**vars(found), **vars(found.part), "part": None} for found in one.committed_ranges],
        "moves": [{**vars(part), **changed} for part, changed in one.moves.items()],
        "removals": [vars(removal) for removal in one.removals],
        "strange": list(one.strange),
        "adopted": one.adopted,
        "gap_records": [gap_record.to_json(found) for found in one.gap_records.values()],
        "backs": [{**vars(back.part), "version": back.version, "start": back.start, "end": back.end}
                  for back in one.backs],
        "answers": [vars(answer) for answer in one.answers],
        "filtered": one.filtered,
        **({"cuts": [_cut_to_json(cut) for cut in one.cuts]} if one.cuts else {}),
    }  # fmt: skip


def _cut_to_json(cut: CutRange) -> dict[str, Any]:
    return {key: value for key, value in {**vars(cut), **vars(cut.part)}.items() if key != "part"}


def _cut_from_json(raw: Mapping[str, Any]) -> CutRange:
    return CutRange(part_of(raw), raw["version"], raw["start"], raw["end"], raw["successor"], raw["is_proven"])


def from_json(raw: Mapping[str, Any], where: str) -> LedgerSegment:
    """Read what `to_json` wrote. Raises LedgerUnreadable."""
    if raw.get("format") != FORMAT:
        raise LedgerUnreadable(
            f"{where} has the format {raw.get('format')!r}, this headrace knows {FORMAT}. Use the one that wrote it."
        )
    try:
        return LedgerSegment(
            raw["first"], raw["last"], from_iso(raw["began"]), from_iso(raw["ended"]), raw["starts"],
            {part_of(begin): begin["offset"] for begin in raw["begins"]},
            tuple(
                CommittedRange(
                    part_of(s), s["start"], s["end"], s["first"], s["last"], s["outcomes"], s["without_records"],
                    s["unexplained"], s["gap"], s["specs"],
                )
                for s in raw["committed_ranges"]
            ),
            {part_of(move): {k: move[k] for k in EXITS if move.get(k)} for move in raw["moves"]},
            tuple(Removal(**removal) for removal in raw["removals"]),
            tuple(raw["strange"]),
            raw["adopted"],
            {found["id"]: gap_record.from_json(found) for found in raw["gap_records"]},
            tuple(RewoundRange(part_of(b), b["version"], b["start"], b["end"]) for b in raw["backs"]),
            tuple(Answer(a["version"], tuple(a["changes"]), a["accepted"]) for a in raw["answers"]),
            raw["filtered"],
            tuple(map(_cut_from_json, raw.get("cuts", ()))),
        )  # fmt: skip
    except (KeyError, TypeError, ValueError) as error:
        raise LedgerUnreadable(
            f"{where} is not a page of the ledger: {type(error).__name__} {error}. Restore it from a backup."
        ) from error
