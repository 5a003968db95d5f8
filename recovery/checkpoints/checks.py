"""Checks before a start whether a checkpoint can be continued, and which level each finding leads to.

Pure: facts in, checks out. `recovery/checkpoints/facts.py` gathers the facts, for a pipeline or for a checkpoint that
headrace did not write; what cannot be known of such a checkpoint is not checked.
"""

from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field

from recovery.checkpoints.reader import Reading
from recovery.escalation.levels import RecoveryLevel
from writer.core.offsets import OffsetRange, Source
from writer.offsets.run_record import RunRecord
from writer.offsets.spark_checkpoint import NO_FILE, Offsets
from writer.offsets.start_decision import LogRange

_SHOWN = 3  # things that a sentence names


@dataclass(frozen=True)
class TopicIds:
    """The id that a topic has now, and the one that the table was filled under."""

    known: str | None  # None: not stored
    now: str | None  # None: the topic is not there
    missing: str = ""  # the sentence of the error that said so


@dataclass(frozen=True)
class CheckFacts:
    """The facts for a preflight. None: the system did not answer; `unknown` has the reason."""

    reading: Reading | None  # None: there is no checkpoint
    frontier: Offsets | None = None
    topics: Mapping[str, TopicIds] | None = None
    held: Mapping[Source, LogRange] | None = None
    run_record: RunRecord | None = None
    lease: str | None = None  # which supervisor has it, or had it
    lost: str | None = None  # a topic that the table knows, and of which it does not say how far it was read
    closed: int | None = None  # the newest run, where the table says that it is over
    foreign: bool = False  # headrace did not write the checkpoint: there is no table to hold it against
    unknown: Mapping[str, str] = field(default_factory=dict)  # `kafka`, `table`, `lease`, `marks` → the error
    diverging: Sequence[Source] = ()  # partitions whose log was cut below the frontier
    stops_at_loss: bool = False  # no start goes on where records were lost
    orphans: Sequence[OffsetRange] = ()  # rows of records that Kafka lost when it cut a log


@dataclass(frozen=True)
class Check:
    """The result of one check. `level`: the first recovery level; None for a finding that a person must repair."""

    name: str
    ok: bool | None  # None: not looked at
    message: str
    level: RecoveryLevel | None = None

    @property
    def halt(self) -> bool:
        """A person must act."""
        return self.ok is False and self.level is None


def preflight(facts: CheckFacts) -> list[Check]:
    """Run all checks, in the order in which they matter to a start."""
    checks = [_lease(facts)]
    if facts.closed is not None or facts.reading is None or facts.reading.nothing:
        none = "there is none" if facts.closed is None else f"run {facts.closed} is over, the table went on elsewhere"
        checks.append(Check("checkpoint", ok=True, message=f"{none}; {_begins(facts)}"))
        checks += [_forgot(facts.lost)] if facts.lost else []
    else:
        checks += _of_the_checkpoint(facts, facts.reading)
    return [*checks, _topics(facts), _log(facts), *([_rows(facts.orphans)] if facts.orphans else [])]


def leads_to(checks: Iterable[Check]) -> RecoveryLevel | None:
    """Return the first recovery level: the highest that a finding asks for; None when all is well."""
    return max((check.level for check in checks if check.ok is False and check.level is not None), default=None)


def _of_the_checkpoint(facts: CheckFacts, reading: Reading) -> Iterator[Check]:
    yield _spark(reading)
    yield _metadata(facts, reading)
    yield _files(facts, reading)
    yield _checksums(facts, reading)
    yield _run_record(facts, reading)
    yield _commits(facts, reading)
    yield _partitions(facts, reading)
    yield _frontier(facts, reading)


def _lease(facts: CheckFacts) -> Check:
    if facts.lease is None:
        return _not_looked_at("lease", facts.unknown.get("lease", "no supervisor keeps one"))
    return Check("lease", ok=True, message=facts.lease)  # the caller holds it, or only looks


def _spark(reading: Reading) -> Check:
    if reading.newer:
        what = _listed(f"{found.name}: {found.why}" for found in reading.newer)
        return Check("spark", ok=False, message=f"a newer Spark wrote the checkpoint ({what}). Run that Spark, or "
                     "begin a new run if the change was meant")  # fmt: skip
    return Check("spark", ok=True, message="the files are of the version that Spark 4.0 reads")


def _metadata(facts: CheckFacts, reading: Reading) -> Check:
    corrupt = reading.corruption_of("metadata")
    if corrupt:
        return Check(
            "metadata", ok=False, message=f"{corrupt}: Spark does not start from it", level=RecoveryLevel.NEW_RUN
        )
    if reading.query_id is None:
        message = "it is missing: Spark would give the query a new id in silence"
        return Check("metadata", ok=False, message=message, level=RecoveryLevel.NEW_RUN)
    known = facts.run_record.query_id if facts.run_record else None
    if known not in (None, reading.query_id):
        message = f"its id is {reading.query_id}, the run's is {known}: it is another query's"
        return Check("metadata", ok=False, message=message, level=RecoveryLevel.NEW_RUN)
    return Check("metadata", ok=True, message=f"the query's id is {reading.query_id}")


def _files(facts: CheckFacts, reading: Reading) -> Check:
    found = [
        (corrupt.name, corrupt.why, _level_of_corrupt_file(reading, corrupt.name))
        for corrupt in reading.corrupt
        if corrupt.name != "metadata"
    ]
    found += [(name, f"it {NO_FILE}", RecoveryLevel.NEW_RUN) for name in reading.directories]
    last = reading.last
    if last and last - 1 not in reading.planned:
        found.append((f"offsets/{last - 1}", "it is missing", RecoveryLevel.NEW_RUN))
    if last == 0 and not reading.finished and not reading.begun:
        found.append(("sources/0/0", "it is missing: nothing says where batch 0 begins", RecoveryLevel.NEW_RUN))
    if not found:
        count = len(reading.planned) + len(reading.committed)
        return Check("files", ok=True, message=f"{count} files of offsets and commits can be read")
    level = max(level for _, _, level in found)
    message = _listed(f"{name}: {why}" for name, why, _ in sorted(found, key=lambda one: -one[2]))
    if facts.foreign:
        message += _hint_by_hand(reading, [name for name, _, _ in found])
    return Check("files", ok=False, message=message, level=level)


def _level_of_corrupt_file(reading: Reading, name: str) -> RecoveryLevel:
    """Return what a corrupt file leads to: a new run if Spark reads it.

    Spark reads the newest two files of offsets/, the newest of commits/, and sources/0/0 in its first batch.
    """
    folder, _, number = name.rpartition("/")
    last = reading.last
    if not folder:
        return RecoveryLevel.NEW_RUN
    if folder == "commits":
        is_read = int(number) == reading.committed[-1]
    elif folder == "offsets":
        is_read = last is not None and int(number) >= last - 1
    else:
        is_read = last == 0 and not reading.finished
    return RecoveryLevel.NEW_RUN if is_read else RecoveryLevel.RESTART


def _hint_by_hand(reading: Reading, names: Collection[str]) -> str:
    """Say when files of a query without a table may be removed by hand; empty if that does not help.

    Without its commit, or without its plan if there is no commit, Spark runs the newest batch again.
    """
    of_newest_batch = f"commits/{reading.last}" if reading.finished else f"offsets/{reading.last}"
    if not set(names) - set(reading.directories):
        return ". It may be removed by hand"
    if not set(names) - {of_newest_batch, *reading.directories}:
        return f". It may be removed by hand only where your sink has nothing of batch {reading.last}"
    return ""


def _checksums(facts: CheckFacts, reading: Reading) -> Check:
    if reading.orphans:
        what = _listed(reading.orphans)
        message = f"{what} of files that are not there: Spark would take them for another query at work"
        if facts.foreign:
            message += ". They may be removed by hand"
        return Check("checksums", ok=False, message=message, level=RecoveryLevel.NEW_RUN)
    return Check("checksums", ok=True, message="none is in the way of a file that is to be written")


def _run_record(facts: CheckFacts, reading: Reading) -> Check:
    if facts.run_record is None:
        return _not_looked_at("witness", "no run record says what Spark had planned")
    wrong = [n for n, batch in reading.batches.items() if facts.run_record.differs(n, batch.content)]
    if wrong:
        level = (
            RecoveryLevel.NEW_RUN
            if reading.last is not None and max(wrong) >= reading.last - 1
            else RecoveryLevel.RESTART
        )
        message = _listed(f"offsets/{n}" for n in sorted(wrong, reverse=True))
        return Check(
            "witness", ok=False, message=f"{message} is not what the writer acted on: it was edited", level=level
        )
    seen = len(facts.run_record.batches.keys() & reading.batches.keys())
    return Check("witness", ok=True, message=f"{seen} batches are as the writer acted on them")


def _commits(facts: CheckFacts, reading: Reading) -> Check:
    planned, committed = reading.planned, reading.committed
    if not planned and committed:
        message = (
            f"offsets/ is empty, but commits/ is not: Spark would begin at batch 0 and fail at batch {committed[0]}"
        )
        return Check("commits", ok=False, message=message, level=RecoveryLevel.NEW_RUN)
    if not planned:
        if facts.run_record and facts.run_record.batches:
            message = f"offsets/ and commits/ are empty, but batch {max(facts.run_record.batches)} was done"
            return Check("commits", ok=False, message=message, level=RecoveryLevel.NEW_RUN)
        return Check("commits", ok=True, message=f"no batch was planned; {_begins(facts)}")
    last = planned[-1]
    if committed and committed[-1] > last:
        message = (
            f"commits end at batch {committed[-1]}, offsets at {last}: Spark would run batch {last} again, then fail"
        )
        return Check("commits", ok=False, message=message, level=RecoveryLevel.NEW_RUN)
    if committed and committed[-1] < last - 1:
        message = f"offsets end at batch {last}, commits at {committed[-1]}: batches between are in doubt"
        return Check("commits", ok=False, message=message, level=RecoveryLevel.NEW_RUN)
    if reading.finished:
        return Check("commits", ok=True, message=f"batch {last} is done, the next is {last + 1}")
    return Check("commits", ok=True, message=f"batch {last} is planned; it runs again")


def _partitions(facts: CheckFacts, reading: Reading) -> Check:
    start = reading.start()
    if facts.frontier is None or start is None:
        return _against_the_table("partitions", facts, start)
    if facts.lost:
        return _not_looked_at("partitions", "the table does not tell")
    if start.keys() == facts.frontier.keys():
        return Check("partitions", ok=True, message=f"the table has the same {len(start)}")
    fewer, more = sorted(facts.frontier.keys() - start.keys()), sorted(start.keys() - facts.frontier.keys())
    message = [f"the checkpoint lacks {_listed(map(_named, fewer))}"] if fewer else []
    message += [f"the table lacks {_listed(map(_named, more))}"] if more else []
    return Check("partitions", ok=False, message="; ".join(message), level=RecoveryLevel.NEW_RUN)


def _frontier(facts: CheckFacts, reading: Reading) -> Check:
    start, end, frontier = reading.start(), reading.end(), facts.frontier
    if facts.lost:
        return _forgot(facts.lost)
    if frontier is None or start is None:
        return _against_the_table("frontier", facts, start)
    ahead = {source: at - frontier[source] for source, at in start.items() if at > frontier.get(source, at)}
    behind = {source: frontier[source] - at for source, at in start.items() if at < frontier.get(source, at)}
    if ahead:
        what = _listed(f"{count} offsets of {_named(source)}" for source, count in sorted(ahead.items()))
        message = f"the checkpoint begins beyond the table: {what} would be lost"
        return Check("frontier", ok=False, message=message, level=RecoveryLevel.NEW_RUN)
    if behind and end is not None and all(end.get(source) == at for source, at in frontier.items()):
        return Check("frontier", ok=True, message="the planned batch is in the table, only Spark does not know")
    if behind:
        what = _listed(f"{count} offsets of {_named(source)}" for source, count in sorted(behind.items()))
        message = f"the checkpoint is older than the table: {what} would be read again"
        return Check("frontier", ok=False, message=message, level=RecoveryLevel.NEW_RUN)
    return Check("frontier", ok=True, message="the checkpoint begins where the table ends")


def _forgot(topic: str) -> Check:
    message = f"the table knows topic {topic!r}, but not how far it was read"
    return Check("frontier", ok=False, message=message, level=RecoveryLevel.WALK_BACK)


def _topics(facts: CheckFacts) -> Check:
    if facts.topics is None:
        return _silent("topics", "kafka", facts)
    gone = sorted(name for name, ids in facts.topics.items() if ids.now is None)
    if gone:
        repair = "Create it, or take it out of `topics`"
        message = facts.topics[gone[0]].missing if len(gone) == 1 else ""
        return Check("topics", ok=False, message=message.removesuffix(".") or f"{_listed(gone)} is not there. {repair}")
    other = _created_again(facts)
    if other:
        message = (
            f"{_listed(other)} was created again: its offsets mean other records. A start reads it from its beginning"
        )
        return Check("topics", ok=False, message=message, level=RecoveryLevel.RESTART)
    kept = sum(ids.known is not None for ids in facts.topics.values())
    what = "with the ids that the table knows" if kept == len(facts.topics) else "ids were not kept, so not compared"
    return Check("topics", ok=True, message=f"{_listed(sorted(facts.topics))}: {what}")


def _log(facts: CheckFacts) -> Check:
    start = facts.frontier if facts.frontier is not None else (facts.reading.start() if facts.reading else None)
    if facts.held is None:
        return _silent("log", "kafka", facts)
    again = _created_again(facts)
    start = {source: at for source, at in (start or {}).items() if source[0] not in again}
    if not start:
        return _not_looked_at("log", "nothing says where to begin" if not again else "offsets of the topic before")
    if facts.diverging:
        what = _listed(map(_named, facts.diverging))
        message = f"Kafka's log was cut below what the table has, and is another one now: {what}"
        if facts.stops_at_loss:
            return Check("log", ok=False, message=f"{message}. Restore it, or set on_data_loss: record")
        message = f"{message}; a start goes on as a further incarnation"
        return Check("log", ok=False, message=message, level=RecoveryLevel.RESTART)
    beyond = sorted(source for source, at in start.items() if source in facts.held and at > facts.held[source].end)
    if beyond:
        what = _listed(f"{_named(s)} ends at {facts.held[s].end}, {start[s]} is wanted" for s in beyond)
        return Check("log", ok=False, message=f"Kafka's log is shorter: {what}. Restore it, or adopt the topic")
    gone = sorted(source for source, at in start.items() if source in facts.held and at < facts.held[source].earliest)
    if gone:
        what = _listed(f"[{start[s]}, {facts.held[s].earliest}) of {_named(s)}" for s in gone)
        lead = "Spark would not read on" if facts.foreign else "a start records it as a gap"
        level = RecoveryLevel.LATEST if facts.foreign else RecoveryLevel.RESTART
        return Check("log", ok=False, message=f"Kafka no longer holds {what}; {lead}", level=level)
    unproven = f"; whether it is the log of then is not known ({why})" if (why := facts.unknown.get("marks")) else ""
    return Check("log", ok=True, message=f"Kafka holds what comes next{unproven}")


def _rows(orphans: Sequence[OffsetRange]) -> Check:
    what = _listed(f"[{r.start}, {r.end}) of {r.part.name}, incarnation {r.part.incarnation}" for r in orphans)
    return Check("rows", ok=True, message=f"Kafka lost the records of rows when it cut a log: {what}")


def _created_again(facts: CheckFacts) -> list[str]:
    """Topics whose offsets mean other records than when they were read."""
    known = facts.topics or {}
    return sorted(name for name, ids in known.items() if ids.now is not None and ids.known not in (None, ids.now))


def _against_the_table(name: str, facts: CheckFacts, start: Offsets | None) -> Check:
    if facts.foreign:
        return _not_looked_at(name, "there is no table to hold it against")
    if facts.frontier is None:
        return _silent(name, "table", facts)
    assert start is None, "where both are known, they are compared"
    return _not_looked_at(name, "the files do not tell where it begins")


def _silent(name: str, system: str, facts: CheckFacts) -> Check:
    """Return a check without an answer, to wait for; or one that was not asked."""
    error = facts.unknown.get(system)
    if error is None:
        return _not_looked_at(name, "no broker was named" if system == "kafka" else "there is no table yet")
    return Check(name, ok=False, message=error.rstrip("."), level=RecoveryLevel.WAIT)


def _not_looked_at(name: str, why: str) -> Check:
    return Check(name, ok=None, message=why)


def _begins(facts: CheckFacts) -> str:
    return "Spark begins at its starting offsets" if facts.foreign else "a start begins a new run from the frontier"


def _named(source: Source) -> str:
    return f"{source[0]}/{source[1]}"


def _listed(found: Iterable[str]) -> str:
    names: Sequence[str] = list(found)
    return ", ".join(names[:_SHOWN]) + (f" and {len(names) - _SHOWN} more" if len(names) > _SHOWN else "")
