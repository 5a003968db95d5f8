"""Formats numbers for people, and the reason for which a batch ended."""

from collections.abc import Mapping, Sequence
from datetime import UTC, datetime, timedelta
from typing import Any

from writer.core.units import show_duration, show_size

_MINUTE, _HOUR, _DAY = 60, 3600, 86_400
_TENTHS_BELOW_S = 10
_PATHS_NAMED = 6


def span(seconds: float) -> str:
    """Write a length of time with two units at most: 0.4 s, 12 s, 3 min 5 s, 2 h 10 min, 6 d 3 h."""
    if seconds < 0:
        return f"-{span(-seconds)}"
    if round(seconds, 1) < _TENTHS_BELOW_S:
        return f"{seconds:.1f} s"
    whole = round(seconds)
    for unit, size, smaller, part in (("d", _DAY, "h", _HOUR), ("h", _HOUR, "min", _MINUTE), ("min", _MINUTE, "s", 1)):
        if whole >= size:
            rest = whole % size // part
            return f"{whole // size} {unit}" + (f" {rest} {smaller}" if rest else "")
    return f"{whole} s"


def instant(at: datetime | str | None) -> str:
    """Write an instant for a person, to the second: 2026-11-20 05:00:00 UTC. `at`: aware, or its ISO 8601 text.

    What has no time, as a record whose timestamp is none, is written `no time`.
    """
    if at is None:
        return "no time"
    at = datetime.fromisoformat(at) if isinstance(at, str) else at
    return f"{at.astimezone(UTC).replace(tzinfo=None).isoformat(' ', 'seconds')} UTC"


def iso(at: datetime | str) -> str:
    """Write an instant for a machine, to the millisecond: 2026-11-20T05:00:00.000Z. `at` as for a person."""
    at = datetime.fromisoformat(at) if isinstance(at, str) else at
    return at.astimezone(UTC).isoformat(timespec="milliseconds").replace("+00:00", "Z")


def plural(count: int, noun: str) -> str:
    """Write a count with its noun: 1 file, 2,000 files."""
    return f"{count:,} {noun}" if count == 1 else f"{count:,} {noun}s"


def reason(facts: Mapping[str, Any]) -> str:
    """Return why a batch ended where it did, from what its commit carries."""
    why = facts["reason"]
    limits, offsets, waiting = facts["limits"], facts["offsets"], facts["waiting"]
    there = plural(max(waiting or 0, offsets), "offset") + " waited"
    match why:
        case "size":
            return f"enough waited: {there}, {_enough(limits)} were enough"
        case "backlog":
            return f"it was full: {there}, {_full(limits, offsets, waiting)}"
        case "timeout":
            delay = show_duration(timedelta(seconds=limits["delay_max_seconds"]))
            return (
                f"the delay was over: {delay} (commit.max_delay) had passed; {there}, {_enough(limits)} would have "
                "ended it sooner"
            )
        case "start":
            return f"it was the first of its start, which does not wait: {there}"
        case "once":
            full = offsets >= limits["records_max"] - len(facts["ranges"]) and (waiting or 0) > offsets
            return f"--once takes what is there: {there}" + (f", {_full(limits, offsets, waiting)}" if full else "")
        case "replay":
            return f"an earlier start had planned it and ended before its commit: {plural(offsets, 'offset')}"
    return f"its commit says {why!r}, which this version of headrace does not know"


def lost(cause: str) -> str:
    """Return why records of a gap will not come."""
    match cause:
        case "retention":
            return "the log began later than the table ended: retention, or a deletion of records, was faster"
        case "latest":
            return "they were skipped on purpose, to read on at the end of Kafka's log"
    return f"its entry says {cause!r}, which this version of headrace does not know"


# What entries did of whose kind there is no more to say.
_PLAIN: Mapping[str, str] = {
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
        case _ if kind in _PLAIN:
            return _PLAIN[kind]
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
            read, made = (sum(one[at] for one in facts["buckets"]) for at in (1, 2))
            return (
                f"the records of {plural(read, 'row')} of a bucket were read again, and are {plural(made, 'row')} now"
            )
        case "rewrite" if taken := facts.get("taken"):
            verb = "was" if taken["rows"] == 1 else "were"
            return f"{plural(taken['rows'], 'row')} {verb} taken out by {taken['why']}"
        case "rewrite" if facts.get("why") == "reprocess":
            return f"{plural(facts['rows'], 'late row')} of a bucket were made anew from their records"
        case "rewrite":
            return "files of a bucket were written again as fewer; its rows did not change"
        case "columns":
            return f"columns were added or widened: {', '.join(f'{k} ({v})' for k, v in facts['changes'].items())}"
        case "accept":
            changes = " and ".join(f"{one['operation']} (version {one['version']})" for one in facts["answers"])
            return f"a person let stand what another client did: {changes}"
        case "targets" if "to" in facts:
            return f"tables of the route became Iceberg tables: {', '.join(one['location'] for one in facts['added'])}"
        case "targets":
            return f"tables of the route were entered: {', '.join(one['location'] for one in facts['added'])}"
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
            named = paths(facts["released"])
            return f"{facts['by']} released {named}: its values may be in the clear from here on"
        case "privacy" if "policies" not in facts and "keys" not in facts:
            return f"schemas said that {paths(facts['protected'])} is to be protected: rows from here on go by it"
        case "privacy" if "policies" not in facts:
            return f"the hash key became {facts['keys']['hash']['id']}: hashes of later rows equal none of those before"
        case "privacy" if not facts["policies"]:
            return f"the pipeline has no privacy policies from here on: version {facts['privacy_version']}"
    keys = ", ".join(f"{use} key {key['id']}" for use, key in facts["keys"].items())
    return f"privacy policies became version {facts['privacy_version']}{f', with {keys}' if keys else ''}"


def paths(protected: Mapping[str, Sequence[Any]]) -> str:
    """Name paths of records, as an entry has them; a few of them."""
    named = [
        f"{'.'.join(path) or 'all'} of {record or 'the columns of keys and headers'}"
        for record, of_record in protected.items()
        for path, _, _ in of_record
    ]
    return listed(named, _PATHS_NAMED)


def ranges(found: Sequence[Mapping[str, Any]], most: int) -> str:
    """Name ranges of offsets: clicks/0 [5, 9) of incarnation 2 where it is not the first; `most` of them."""
    shown = [
        f"{r['topic']}/{r['partition']} [{r['start']:,}, {r['end']:,})"
        + (f" of incarnation {r['incarnation']}" if r["incarnation"] > 1 else "")
        for r in found
    ]
    return listed(shown, most)


def listed(found: Sequence[str], most: int, between: str = ", ") -> str:
    """Join words, `most` of them: a, b, c and 4 more."""
    return between.join(found[:most]) + (f" and {len(found) - most:,} more" if len(found) > most else "")


def _enough(limits: Mapping[str, Any]) -> str:
    key = limits["records_min_from"]
    return f"{limits['records_min']:,} ({'one file of ' if key == 'roll.target_file_size' else ''}{key})"


def _full(limits: Mapping[str, Any], offsets: int, waiting: int | None) -> str:
    most = f"one commit takes {limits['records_max']:,} ({_most_from(limits)})"
    return most if waiting is None else f"{most}; {waiting - offsets:,} were left for the next"


def _most_from(limits: Mapping[str, Any]) -> str:
    limited = limits.get("records_max_from")
    return "commit.max_records" if limited is None else f"{limit_words(limited)} for commit.max_delay"


def limit_words(limit: Mapping[str, Any]) -> str:
    """Write a rate limit for a person: 5,000 records/s and 10.0 MiB/s. `limit`: as in a commit or a status."""
    records, size = limit["records_per_second"], limit["bytes_per_second"]
    parts = ["" if records is None else f"{records:,.0f} records/s", "" if size is None else f"{show_size(size)}/s"]
    return " and ".join(filter(None, parts)) or "no limit"


def held(facts: Mapping[str, Any]) -> str:
    """Say how long a batch waited for the rate limit; empty where it did not."""
    limit = facts.get("rate_limit")
    if limit is None or not limit["held_seconds"]:
        return ""
    return f"it waited {span(limit['held_seconds'])} for the rate limit of {limit_words(limit)}"
