"""Checks before a start whether a checkpoint can be continued, and which level each finding leads to.

Pure: facts in, checks out. `recovery/checkpoints/facts.py` gathers the facts, for a pipeline or for a checkpoint that
headrace did not write; what cannot be known of such a checkpoint is not checked.
"""

from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field

from headrace.recovery.checkpoints.reader import CheckpointContent
from headrace.recovery.escalation.levels import RecoveryLevel
from headrace.writer.core.offsets import OffsetRange, Source
from headrace.writer.core.text import join_first
from headrace.writer.offsets.run_record import RunRecord
from headrace.writer.offsets.spark_checkpoint import NO_FILE, Offsets
from headrace.writer.offsets.start_decision import LogRange
from headrace.writer.table.lost_tables import LostTable

# Things that a sentence names.
_SHOWN = 3


@dataclass(frozen=True)
class TopicIds:
    """The id that the table was filled under, and the one that the topic has now."""

    # None: the table does not know the topic.
    stored: str | None
    # None: the topic is not there.
    current: str | None
    # The sentence of the error that said so.
    missing: str = ""


@dataclass(frozen=True)
class CheckFacts:
    """The facts for a preflight. None: the system did not answer; `unanswered` has the reason."""

    # None: there is no checkpoint.
    content: CheckpointContent | None
    frontier: Offsets | None = None
    topics: Mapping[str, TopicIds] | None = None
    log_ranges: Mapping[Source, LogRange] | None = None
    run_record: RunRecord | None = None
    # Which process has the lease, or had it.
    lease: str | None = None
    # A topic that the table knows, and of which it does not say how far it was read.
    lost_topic: str | None = None
    # The table, where it is not there though a run has written to it.
    lost_table: LostTable | None = None
    # Tables beside it that are not there, though its log knows them.
    lost_side_tables: Sequence[LostTable] = ()
    # The newest run, where the table says that it is over.
    closed_run: int | None = None
    # headrace did not write the checkpoint: there is no table to compare it with.
    is_foreign: bool = False
    # `kafka`, `table`, `lease`, `marks` → the error.
    unanswered: Mapping[str, str] = field(default_factory=dict)
    # Partitions whose log was cut below the frontier.
    diverging: Sequence[Source] = ()
    # No start goes on where records were lost.
    stops_at_loss: bool = False
    # Rows of records that Kafka lost when it cut a log.
    orphaned_rows: Sequence[OffsetRange] = ()


@dataclass(frozen=True)
class Check:
    """The result of one check."""

    name: str
    # None: it was not done.
    ok: bool | None
    message: str
    # The first recovery level; None for a finding that a person must repair.
    level: RecoveryLevel | None = None

    @property
    def halt(self) -> bool:
        """A person must act."""
        return self.ok is False and self.level is None


def preflight(facts: CheckFacts) -> list[Check]:
    """Run all checks, in the order in which they matter to a start."""
    checks = [_check_lease(facts)]
    if facts.lost_table is not None:
        checks.append(_lost_table_check(facts.lost_table))
    checks += map(_lost_table_check, facts.lost_side_tables)
    content = facts.content
    if facts.closed_run is not None or content is None or content.is_missing:
        checks.append(_without_checkpoint(facts))
        if facts.lost_topic:
            checks.append(_lost_frontier_check(facts.lost_topic))
    else:
        checks += _check_checkpoint(facts, content)
    checks.append(_check_topics(facts))
    checks.append(_check_log(facts))
    if facts.orphaned_rows:
        checks.append(_check_rows(facts.orphaned_rows))
    return checks


def leads_to(checks: Iterable[Check]) -> RecoveryLevel | None:
    """Return the first recovery level: the highest that a finding asks for; None when all is well."""
    levels = [check.level for check in checks if check.ok is False and check.level is not None]
    return max(levels, default=None)


def _check_checkpoint(facts: CheckFacts, content: CheckpointContent) -> Iterator[Check]:
    yield _check_spark(content)
    yield _check_metadata(facts, content)
    yield _check_files(facts, content)
    yield _check_checksums(facts, content)
    yield _check_run_record(facts, content)
    yield _check_commits(facts, content)
    yield _check_partitions(facts, content)
    yield _check_frontier(facts, content)


def _check_lease(facts: CheckFacts) -> Check:
    if facts.lease is None:
        return _no_check("lease", facts.unanswered.get("lease", "no process keeps one"))
    # The caller holds the lease, or only looks.
    return Check("lease", ok=True, message=facts.lease)


def _without_checkpoint(facts: CheckFacts) -> Check:
    reason = "there is none"
    if facts.closed_run is not None:
        reason = f"run {facts.closed_run} is over, the table went on elsewhere"
    return Check("checkpoint", ok=True, message=f"{reason}; {_beginning(facts)}")


def _check_spark(content: CheckpointContent) -> Check:
    if content.newer:
        files = _first(f"{file.name}: {file.reason}" for file in content.newer)
        message = f"a newer Spark wrote the checkpoint ({files}). Run that Spark, or begin a new run if the change was "
        return Check("spark", ok=False, message=f"{message}meant")
    return Check("spark", ok=True, message="the files are of the version that Spark 4 writes")


def _check_metadata(facts: CheckFacts, content: CheckpointContent) -> Check:
    corruption = content.corruption_of("metadata")
    if corruption:
        return _needs_new_run("metadata", f"{corruption}: Spark does not start from it")
    if content.query_id is None:
        return _needs_new_run("metadata", "it is missing: Spark would give the query a new id in silence")
    recorded_id = None
    if facts.run_record is not None:
        recorded_id = facts.run_record.query_id
    if recorded_id is not None and recorded_id != content.query_id:
        message = f"its id is {content.query_id}, the run's is {recorded_id}: it is another query's"
        return _needs_new_run("metadata", message)
    return Check("metadata", ok=True, message=f"the query's id is {content.query_id}")


@dataclass(frozen=True)
class _FileFinding:
    """A file that is not as Spark needs it."""

    name: str
    reason: str
    level: RecoveryLevel


def _check_files(facts: CheckFacts, content: CheckpointContent) -> Check:
    findings = list(_find_bad_files(content))
    if not findings:
        count = len(content.planned) + len(content.committed)
        return Check("files", ok=True, message=f"{count} files of offsets and commits can be read")
    findings.sort(key=lambda finding: -finding.level)
    message = _first(f"{finding.name}: {finding.reason}" for finding in findings)
    if facts.is_foreign:
        message += _hint_by_hand(content, [finding.name for finding in findings])
    return Check("files", ok=False, message=message, level=findings[0].level)


def _find_bad_files(content: CheckpointContent) -> Iterator[_FileFinding]:
    for file in content.corrupt:
        if file.name != "metadata":
            yield _FileFinding(file.name, file.reason, _level_of_corrupt_file(content, file.name))
    for name in content.directories:
        yield _FileFinding(name, f"it {NO_FILE}", RecoveryLevel.NEW_RUN)
    newest = content.newest_batch
    if newest and newest - 1 not in content.planned:
        yield _FileFinding(f"offsets/{newest - 1}", "it is missing", RecoveryLevel.NEW_RUN)
    if newest == 0 and not content.is_finished and not content.source_starts:
        reason = "it is missing: nothing says where batch 0 begins"
        yield _FileFinding("sources/0/0", reason, RecoveryLevel.NEW_RUN)


def _level_of_corrupt_file(content: CheckpointContent, name: str) -> RecoveryLevel:
    """Return what a corrupt file leads to: a new run if Spark reads it.

    Spark reads the newest two files of offsets/, the newest of commits/, and sources/0/0 in its first batch.
    """
    folder, _, number = name.rpartition("/")
    newest = content.newest_batch
    if not folder:
        return RecoveryLevel.NEW_RUN
    if folder == "commits":
        is_read = int(number) == content.committed[-1]
    elif folder == "offsets":
        is_read = newest is not None and int(number) >= newest - 1
    else:
        is_read = newest == 0 and not content.is_finished
    return RecoveryLevel.NEW_RUN if is_read else RecoveryLevel.RESTART


def _hint_by_hand(content: CheckpointContent, names: Collection[str]) -> str:
    """Say when files of a query without a table may be removed by hand; empty if that does not help.

    Without its commit, or without its plan if there is no commit, Spark runs the newest batch again.
    """
    newest = content.newest_batch
    if set(names) <= set(content.directories):
        return ". It may be removed by hand"
    folder = "commits" if content.is_finished else "offsets"
    if set(names) <= {f"{folder}/{newest}", *content.directories}:
        return f". It may be removed by hand only where your sink has nothing of batch {newest}"
    return ""


def _check_checksums(facts: CheckFacts, content: CheckpointContent) -> Check:
    if not content.orphaned_checksums:
        return Check("checksums", ok=True, message="none is in the way of a file that is to be written")
    files = _first(content.orphaned_checksums)
    message = f"{files} of files that are not there: Spark would take them for another query at work"
    if facts.is_foreign:
        message += ". They may be removed by hand"
    return _needs_new_run("checksums", message)


def _check_run_record(facts: CheckFacts, content: CheckpointContent) -> Check:
    record = facts.run_record
    if record is None:
        return _no_check("witness", "no run record says what Spark had planned")
    edited = [number for number, batch in content.batches.items() if record.differs(number, batch.content)]
    if not edited:
        count = len(record.batches.keys() & content.batches.keys())
        return Check("witness", ok=True, message=f"{count} batches are as the writer acted on them")
    level = RecoveryLevel.RESTART
    if content.newest_batch is not None and max(edited) >= content.newest_batch - 1:
        level = RecoveryLevel.NEW_RUN
    files = _first(f"offsets/{number}" for number in sorted(edited, reverse=True))
    message = f"{files} is not what the writer acted on: it was edited"
    return Check("witness", ok=False, message=message, level=level)


def _check_commits(facts: CheckFacts, content: CheckpointContent) -> Check:
    committed = content.committed
    newest = content.newest_batch
    if newest is None and committed:
        return _needs_new_run(
            "commits",
            f"offsets/ is empty, but commits/ is not: Spark would begin at batch 0 and fail at batch {committed[0]}",
        )
    if newest is None:
        if facts.run_record and facts.run_record.batches:
            message = f"offsets/ and commits/ are empty, but batch {max(facts.run_record.batches)} was done"
            return _needs_new_run("commits", message)
        return Check("commits", ok=True, message=f"no batch was planned; {_beginning(facts)}")
    if committed and committed[-1] > newest:
        return _needs_new_run(
            "commits",
            f"commits end at batch {committed[-1]}, offsets at {newest}: Spark would run batch {newest} again, then "
            "fail",
        )
    if committed and committed[-1] < newest - 1:
        message = f"offsets end at batch {newest}, commits at {committed[-1]}: batches between are in doubt"
        return _needs_new_run("commits", message)
    if content.is_finished:
        return Check("commits", ok=True, message=f"batch {newest} is done, the next is {newest + 1}")
    return Check("commits", ok=True, message=f"batch {newest} is planned and not done; a start reads it again")


def _check_partitions(facts: CheckFacts, content: CheckpointContent) -> Check:
    start = content.start_offsets()
    if facts.frontier is None or start is None:
        return _without_comparison("partitions", facts, start)
    if facts.lost_topic:
        return _no_check("partitions", "the table does not tell")
    if start.keys() == facts.frontier.keys():
        return Check("partitions", ok=True, message=f"the table has the same {len(start)}")
    missing = sorted(facts.frontier.keys() - start.keys())
    additional = sorted(start.keys() - facts.frontier.keys())
    messages = list[str]()
    if missing:
        messages.append(f"the checkpoint lacks {_first(map(_source_name, missing))}")
    if additional:
        messages.append(f"the table lacks {_first(map(_source_name, additional))}")
    return _needs_new_run("partitions", "; ".join(messages))


def _check_frontier(facts: CheckFacts, content: CheckpointContent) -> Check:
    """Compare where the checkpoint begins with where the table ends.

    With the table at {clicks/0: 6, clicks/1: 4}:

        start {clicks/0: 6, clicks/1: 4}  → ok
        start {clicks/0: 5, clicks/1: 4}, planned end {clicks/0: 6, clicks/1: 4}  → ok, the batch is in the table
        start {clicks/0: 5, clicks/1: 4}, another end  → 1 offset of clicks/0 would be read again
        start {clicks/0: 7, clicks/1: 4}  → 1 offset of clicks/0 would be lost
    """
    start = content.start_offsets()
    planned_end = content.end_offsets()
    frontier = facts.frontier
    if facts.lost_topic:
        return _lost_frontier_check(facts.lost_topic)
    if frontier is None or start is None:
        return _without_comparison("frontier", facts, start)
    distances = {source: offset - frontier[source] for source, offset in start.items() if source in frontier}
    ahead = {source: distance for source, distance in distances.items() if distance > 0}
    behind = {source: -distance for source, distance in distances.items() if distance < 0}
    if ahead:
        message = f"the checkpoint begins beyond the table: {_offset_counts(ahead)} would be lost"
        return _needs_new_run("frontier", message)
    if not behind:
        return Check("frontier", ok=True, message="the checkpoint begins where the table ends")
    if planned_end is not None and all(planned_end.get(source) == offset for source, offset in frontier.items()):
        return Check("frontier", ok=True, message="the planned batch is in the table, only Spark does not know")
    message = f"the checkpoint is older than the table: {_offset_counts(behind)} would be read again"
    return _needs_new_run("frontier", message)


def _lost_frontier_check(topic: str) -> Check:
    message = f"the table knows topic {topic!r}, but not how far it was read"
    return Check("frontier", ok=False, message=message, level=RecoveryLevel.WALK_BACK)


def _lost_table_check(lost: LostTable) -> Check:
    # A message has no full stop at its end.
    return Check("table", ok=False, message=lost.text.rstrip("."))


def _check_topics(facts: CheckFacts) -> Check:
    if facts.topics is None:
        return _check_without_answer("topics", "kafka", facts)
    gone = sorted(name for name, ids in facts.topics.items() if ids.current is None)
    if gone:
        return _missing_topics_check(facts.topics, gone)
    recreated = _recreated_topics(facts)
    if recreated:
        message = (
            f"{_first(recreated)} was created again: its offsets mean other records. A start reads it from its "
            "beginning"
        )
        return Check("topics", ok=False, message=message, level=RecoveryLevel.RESTART)
    comparison = "ids were not kept, so not compared"
    if all(ids.stored is not None for ids in facts.topics.values()):
        comparison = "with the ids that the table knows"
    return Check("topics", ok=True, message=f"{_first(sorted(facts.topics))}: {comparison}")


def _missing_topics_check(topics: Mapping[str, TopicIds], gone: Sequence[str]) -> Check:
    message = f"{_first(gone)} is not there. Create it, or take it out of `topics`"
    if len(gone) == 1 and topics[gone[0]].missing:
        message = topics[gone[0]].missing.removesuffix(".")
    return Check("topics", ok=False, message=message)


def _check_log(facts: CheckFacts) -> Check:
    """Check whether Kafka holds what comes next."""
    log_ranges = facts.log_ranges
    if log_ranges is None:
        return _check_without_answer("log", "kafka", facts)
    recreated = _recreated_topics(facts)
    start = {source: offset for source, offset in _next_offsets(facts).items() if source[0] not in recreated}
    if not start:
        reason = "offsets of the topic before" if recreated else "nothing says where to begin"
        return _no_check("log", reason)
    if facts.diverging:
        return _log_diverges(facts)
    sources = sorted(start.keys() & log_ranges.keys())
    beyond = [source for source in sources if start[source] > log_ranges[source].end]
    if beyond:
        ends = _first(
            f"{_source_name(source)} ends at {log_ranges[source].end}, {start[source]} is wanted" for source in beyond
        )
        return Check("log", ok=False, message=f"Kafka's log is shorter: {ends}. Restore it, or adopt the topic")
    gone = [source for source in sources if start[source] < log_ranges[source].earliest]
    if gone:
        ranges = _first(
            f"[{start[source]}, {log_ranges[source].earliest}) of {_source_name(source)}" for source in gone
        )
        if facts.is_foreign:
            message = f"Kafka no longer holds {ranges}; Spark would not read on"
            return Check("log", ok=False, message=message, level=RecoveryLevel.LATEST)
        message = f"Kafka no longer holds {ranges}; a start records it as a gap"
        return Check("log", ok=False, message=message, level=RecoveryLevel.RESTART)
    message = "Kafka holds what comes next"
    error = facts.unanswered.get("marks")
    if error:
        message += f"; whether it is the log of then is not known ({error})"
    return Check("log", ok=True, message=message)


def _next_offsets(facts: CheckFacts) -> Offsets:
    """Return where the next batch begins, as the table says it, else the checkpoint; empty: nothing says it."""
    if facts.frontier is not None:
        return facts.frontier
    if facts.content is None:
        return {}
    return facts.content.start_offsets() or {}


def _log_diverges(facts: CheckFacts) -> Check:
    sources = _first(map(_source_name, facts.diverging))
    message = f"Kafka's log was cut below what the table has, and is another one now: {sources}"
    if facts.stops_at_loss:
        return Check("log", ok=False, message=f"{message}. Restore it, or set on_data_loss: record")
    message = f"{message}; a start goes on as a further incarnation"
    return Check("log", ok=False, message=message, level=RecoveryLevel.RESTART)


def _check_rows(orphaned_rows: Sequence[OffsetRange]) -> Check:
    ranges = _first(
        f"[{rows.start}, {rows.end}) of {rows.part.name}, incarnation {rows.part.incarnation}" for rows in orphaned_rows
    )
    return Check("rows", ok=True, message=f"Kafka lost the records of rows when it cut a log: {ranges}")


def _recreated_topics(facts: CheckFacts) -> list[str]:
    """Return topics whose offsets mean other records than when they were read."""
    return sorted(
        name
        for name, ids in (facts.topics or {}).items()
        if ids.current is not None and ids.stored is not None and ids.stored != ids.current
    )


def _without_comparison(name: str, facts: CheckFacts, start: Offsets | None) -> Check:
    """Return a check that lacks the table's offsets, or the checkpoint's."""
    if facts.is_foreign:
        return _no_check(name, "there is no table to hold it against")
    if facts.frontier is None:
        return _check_without_answer(name, "table", facts)
    assert start is None, "where both are known, they are compared"
    return _no_check(name, "the files do not tell where it begins")


def _check_without_answer(name: str, system: str, facts: CheckFacts) -> Check:
    """Return a check of a system that did not answer, to wait for; or that was not asked."""
    error = facts.unanswered.get(system)
    if error is None and system == "kafka":
        return _no_check(name, "no broker was named")
    if error is None:
        return _no_check(name, "there is no table yet")
    return Check(name, ok=False, message=error.rstrip("."), level=RecoveryLevel.WAIT)


def _no_check(name: str, reason: str) -> Check:
    return Check(name, ok=None, message=reason)


def _needs_new_run(name: str, message: str) -> Check:
    return Check(name, ok=False, message=message, level=RecoveryLevel.NEW_RUN)


def _beginning(facts: CheckFacts) -> str:
    if facts.is_foreign:
        return "Spark begins at its starting offsets"
    return "a start begins a new run from the frontier"


def _offset_counts(counts: Mapping[Source, int]) -> str:
    return _first(f"{count} offsets of {_source_name(source)}" for source, count in sorted(counts.items()))


def _source_name(source: Source) -> str:
    return f"{source[0]}/{source[1]}"


def _first(names: Iterable[str]) -> str:
    """Return the first names in words, and how many more there are."""
    return join_first(list(names), _SHOWN)
