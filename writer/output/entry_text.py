"""Says in sentences what an entry of the table's log did: why a batch ended, why a gap opened, what was changed."""

from collections.abc import Mapping, Sequence
from datetime import timedelta
from typing import Any

from headrace.writer.core.text import describe_limit, join_first, plural, span
from headrace.writer.core.units import show_duration

_PATHS_NAMED = 6


def batch_end_reason(facts: Mapping[str, Any]) -> str:
    """Return why a batch ended where it did, from the facts of its commit."""
    reason = facts["reason"]
    limits = facts["limits"]
    offsets = facts["offsets"]
    # None: it is not known how many offsets waited.
    waiting = facts["waiting"]
    backlog = plural(max(waiting or 0, offsets), "offset") + " waited"
    match reason:
        case "size":
            return f"enough waited: {backlog}, {_describe_enough(limits)} were enough"
        case "backlog":
            return f"it was full: {backlog}, {_describe_full_batch(limits, offsets, waiting)}"
        case "timeout":
            delay = show_duration(timedelta(seconds=limits["delay_max_seconds"]))
            return (
                f"the delay was over: {delay} (commit.max_delay) had passed; {backlog}, "
                f"{_describe_enough(limits)} would have ended it sooner"
            )
        case "start":
            return f"it was the first of its start, which does not wait: {backlog}"
        case "once":
            sentence = f"--once takes what is there: {backlog}"
            is_full = offsets >= limits["offsets_max"] - len(facts["ranges"])
            if is_full and (waiting or 0) > offsets:
                sentence += f", {_describe_full_batch(limits, offsets, waiting)}"
            return sentence
        case "replay":
            return f"an earlier start had planned it and ended before its commit: {plural(offsets, 'offset')}"
    return f"its commit says {reason!r}, which this version of headrace does not know"


def gap_reason(cause: str) -> str:
    """Return why records of a gap will not come."""
    match cause:
        case "retention":
            return "the log began later than the table ended: retention, or a deletion of records, was faster"
        case "latest":
            return "they were skipped on purpose, to read on at the end of Kafka's log"
    return f"its entry says {cause!r}, which this version of headrace does not know"


# What an entry did, by its kind, where its facts add nothing.
_SENTENCES: Mapping[str, str] = {
    "start": "a driver began: from here on the pipeline is its own",
    "adopt": "a person said where a topic that was created again is read on",
    "close": "buckets were closed: what still comes for them is late",
    "seal": "buckets were sealed: readers may take them as complete",
    "rewind": "rows were taken out, and are read again",
    "schema": "a person accepted that schema ids mean other schemas from here on",
    "convert": "the table became an Iceberg table: from here on the catalog says what belongs to it",
    "take": "headrace took the table over from another writer, as it was",
    "create": "the table was created",
}


def describe_entry(kind: str, facts: Mapping[str, Any]) -> str:
    """Return what an entry of the log did that is neither a batch nor a gap."""
    match kind:
        case _ if kind in _SENTENCES:
            return _SENTENCES[kind]
        case "fill":
            left = f"{plural(facts['left'], 'offset')} left"
            return f"a backfill settled {plural(facts['offsets'], 'offset')} of gap {facts['gap'][:8]}, {left}"
        case "lost":
            return (
                f"gap {facts['gap'][:8]} was given up with {plural(facts['left'], 'offset')} that were not brought back"
            )
        case "replay" if not facts.get("moves"):
            return "dead letters were deleted: a replay that had read them before reads them again"
        case "replay":
            rows = sum(move.get("rows", 0) for move in facts.get("moves", ()))
            return f"{plural(rows, 'row')} came of dead letters that were decoded again"
        case "reprocess":
            # Each bucket: its key, the rows that were read again, the rows that came of them.
            rows_before = plural(sum(bucket[1] for bucket in facts["buckets"]), "row")
            rows_after = plural(sum(bucket[2] for bucket in facts["buckets"]), "row")
            return f"the records of {rows_before} of a bucket were read again, and are {rows_after} now"
        case "rewrite" if removal := facts.get("taken"):
            verb = "was" if removal["rows"] == 1 else "were"
            return f"{plural(removal['rows'], 'row')} {verb} taken out by {removal['why']}"
        case "rewrite" if facts.get("why") == "reprocess":
            return f"{plural(facts['rows'], 'late row')} of a bucket were made anew from their records"
        case "rewrite":
            return "files of a bucket were written again as fewer; its rows did not change"
        case "columns":
            changes = ", ".join(f"{column} ({change})" for column, change in facts["changes"].items())
            return f"columns were added or widened: {changes}"
        case "accept":
            answers = [f"{answer['operation']} (version {answer['version']})" for answer in facts["answers"]]
            return f"a person let stand what another client did: {' and '.join(answers)}"
        case "targets":
            locations = ", ".join(target["location"] for target in facts["added"])
            if "to" in facts:
                return f"tables of the route became Iceberg tables: {locations}"
            return f"tables of the route were entered: {locations}"
        case "raw" | "promote" | "specs" | "privacy" | "zones":
            return _describe_settings(kind, facts)
        case "side":
            return f"what version {facts['main_version']} of the pipeline's table listed for this one was added"
        case "client":
            return f"another client ran {facts['operation']}; `headrace audit` says whether it changed rows"
    return f"it is a {kind}, which this version of headrace does not know"


def _describe_settings(kind: str, facts: Mapping[str, Any]) -> str:
    """Return what an entry changed of what later entries go by: a raw table, a successor, specs, privacy."""
    match kind:
        case "raw":
            return f"a raw table was entered: from here on records may be kept at {facts['location']}"
        case "promote" if facts["superseded_by"]:
            return f"the table at {facts['superseded_by']} was put in its place: no writer goes on here"
        case "promote":
            return "the table that had been put in its place gave way to it: writers may go on"
        case "specs" if not facts["specs"]:
            return f"the pipeline has no event specs from here on: version {facts['specs_version']}"
        case "specs":
            names = ", ".join(facts["specs"])
            return f"event specs of {names} became version {facts['specs_version']}: batches from here on go by it"
        case "zones":
            versions = ", ".join(f"{zone} ({version or 'unknown'})" for zone, version in facts["versions"].items())
            return f"labels of buckets are made by these data of time zones from here on: {versions}"
        case "privacy" if "released" in facts:
            paths = _name_paths(facts["released"])
            return f"{facts['by']} released {paths}: its values may be in the clear from here on"
        case "privacy" if "policies" not in facts and "keys" not in facts:
            paths = _name_paths(facts["protected"])
            return f"schemas said that {paths} is to be protected: rows from here on go by it"
        case "privacy" if "policies" not in facts:
            return f"the hash key became {facts['keys']['hash']['id']}: hashes of later rows equal none of those before"
        case "privacy" if not facts["policies"]:
            return f"the pipeline has no privacy policies from here on: version {facts['privacy_version']}"
    keys = ", ".join(f"{use} key {key['id']}" for use, key in facts["keys"].items())
    sentence = f"privacy policies became version {facts['privacy_version']}"
    if keys:
        sentence += f", with {keys}"
    return sentence


def _name_paths(protected: Mapping[str, Sequence[Any]]) -> str:
    """Name the first paths of records. `protected`: record → its paths, each with two further values."""
    names: list[str] = []
    for record, paths in protected.items():
        owner = record or "the columns of keys and headers"
        names += [f"{'.'.join(path) or 'all'} of {owner}" for path, _, _ in paths]
    return join_first(names, _PATHS_NAMED)


def _describe_enough(limits: Mapping[str, Any]) -> str:
    """Say how many offsets end a batch before its time, and which key decides over it."""
    key = limits["offsets_min_from"]
    origin = key
    if key == "roll.target_file_size":
        origin = f"one file of {key}"
    return f"{limits['offsets_min']:,} ({origin})"


def _describe_full_batch(limits: Mapping[str, Any], offsets: int, waiting: int | None) -> str:
    """Say how many offsets one commit takes, which limit decides over it, and how many offsets are left."""
    rate_limit = limits.get("offsets_max_from")
    origin = "commit.max_offsets"
    if rate_limit is not None:
        origin = f"{describe_limit(rate_limit)} for commit.max_delay"
    sentence = f"one commit takes {limits['offsets_max']:,} ({origin})"
    if waiting is None:
        return sentence
    return f"{sentence}; {waiting - offsets:,} were left for the next"


def describe_rate_wait(facts: Mapping[str, Any]) -> str:
    """Say how long a batch waited for the rate limit; empty if it did not wait."""
    limit = facts.get("rate_limit")
    if limit is None or not limit["held_seconds"]:
        return ""
    return f"it waited {span(limit['held_seconds'])} for the rate limit of {describe_limit(limit)}"
