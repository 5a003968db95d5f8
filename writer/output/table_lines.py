"""Words about what a pipeline's tables hold and what came to them since the start, from its part of `/status`."""

from collections.abc import Mapping
from typing import Any

from rich.text import Text

from headrace.writer.core.text import instant, name_ranges, plural, span
from headrace.writer.core.units import show_size
from headrace.writer.output.health import FAILED_BAD, failed_records

# What was read of a table longer ago says so.
_OLD_S = 60
# A smaller share of all records is shown as a number, not in percent.
_SHARE_SMALL = 0.0001
# The screen names at most as many ranges of a gap.
_GAP_RANGES = 2


def sums_text(totals: Mapping[str, Any]) -> Text:
    """Return what came since the start."""
    records = totals["records"]
    return Text(
        f"{plural(records['rows'], 'row')} in {plural(sum(totals['commits'].values()), 'commit')}, "
        f"{plural(totals['files'], 'file')}, {show_size(totals['bytes'])}"
    )


def contents_text(pipeline: Mapping[str, Any]) -> Text:
    """Return what the table holds, whoever wrote it; empty where it holds nothing, and of a route."""
    contents = pipeline.get("table")
    if contents is None and not pipeline.get("targets"):
        return Text("not known yet", style="yellow")
    if contents is None or not contents["files"]:
        return Text()
    rows = "rows of another client, who does not say how many"
    if contents["rows"] is not None:
        rows = plural(contents["rows"], "row")
    text = Text(f"{rows} in {plural(contents['files'], 'file')}, {show_size(contents['bytes'])}")
    return text.append(_count_age(pipeline), style="dim")


def _age_text(facts: Mapping[str, Any], verb: str) -> str:
    """Return how old facts of the tables are; empty while they are young."""
    age_s = facts.get("age_seconds") or 0.0
    return f", {verb} {span(age_s)} ago" if age_s > _OLD_S else ""


def _count_age(pipeline: Mapping[str, Any]) -> str:
    """Return how old the counts of the tables are; empty while they are young, and not from before the last commit."""
    age_s = pipeline["table"]["age_seconds"]
    commit_age_s = pipeline["commit_age_seconds"]
    if commit_age_s is not None and age_s > commit_age_s:
        return f", counted {span(age_s)} ago, before the last commit"
    return _age_text(pipeline["table"], "counted")


def gaps_text(gaps: Mapping[str, Any]) -> Text:
    """Return which gaps are open, and what brings their records; empty where none is."""
    if gaps["count"] is None:
        return Text("not known", style="yellow")
    if not gaps["count"]:
        return Text()
    text = Text(f"{plural(gaps['count'], 'gap')} open, {plural(gaps['offsets'], 'offset')}", style="bold red")
    text.append(f", {_gap_remedy(gaps)}")
    last = gaps["last"]
    if last is not None:
        text.append(
            f"; the last at {instant(last['at'])}, {name_ranges(last['ranges'], _GAP_RANGES)} ({last['cause']})"
        )
    return text.append(_age_text(gaps, "read"), style="dim")


def _gap_remedy(gaps: Mapping[str, Any]) -> str:
    """Return where the offsets of open gaps are, and what brings them. `gaps`: of `/status`."""
    in_kafka = gaps["in_kafka"]
    if in_kafka is None:
        return "whether Kafka holds them is not known"
    if in_kafka >= gaps["offsets"]:
        return "Kafka holds them, `headrace backfill` brings them"
    if not in_kafka:
        return "Kafka holds none of them: a mirror or an archive may (`headrace backfill`)"
    return f"Kafka holds {in_kafka:,} of them, `headrace backfill` brings these"


def dead_letters_text(pipeline: Mapping[str, Any]) -> Text:
    """Return what the dead-letter table holds, and what came to it since the start."""
    rows = (pipeline.get("table") or {}).get("dead_letters")
    since_start = _new_dead_letters(pipeline["totals"])
    if (pipeline.get("table") or {}).get("lost"):
        return Text("their table is lost, ", style="bold red").append(since_start)
    if rows is None:
        return Text("not known in their table, ", style="yellow").append(since_start)
    text = Text("none in their table", style="green")
    separator = ", "
    if rows:
        text = Text(f"{plural(rows, 'record')} in their table")
        separator = "; "
    age = _count_age(pipeline)
    if age:
        text.append(age, style="dim")
        separator = "; "
    return text.append(separator).append(since_start)


def _new_dead_letters(totals: Mapping[str, Any]) -> Text:
    records = totals["records"]
    by_rule = totals.get("dead_letters_by_rule", 0)
    without_row = records["dead_letters"] + records["quarantined"]
    if not without_row:
        return Text("none since the start", style="green")
    share = without_row / max(1, records["read"])
    percent = f"{share:.2g}" if share < _SHARE_SMALL else f"{share:.2%}"
    style = "bold red" if failed_records(totals) > FAILED_BAD * records["read"] else "yellow"
    text = Text(f"{records['dead_letters']:,}", style=style)
    if by_rule:
        text.append(f" ({by_rule:,} by a rule)")
    return text.append(f", and {records['quarantined']:,} quarantined since the start: {percent} of all read")


def buckets_text(pipeline: Mapping[str, Any]) -> Text:
    """Return how many buckets or tables have rows, and how far the newest event is behind."""
    text = Text(f"{pipeline['buckets']:,} with rows")
    if pipeline.get("targets"):
        # The buckets lie in the tables of the route.
        text = Text(f"in {plural(len(pipeline['targets']), 'table')}")
    age_s = pipeline["event_time_newest_age_seconds"]
    if age_s is None:
        return text
    if age_s < 0:
        return text.append(f", newest event {span(-age_s)} ahead")
    return text.append(f", newest event {span(age_s)} ago")
