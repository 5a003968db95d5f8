"""Shows a pipeline's status: several lines on a terminal, one line at a time in a log."""

from collections.abc import Mapping, Sequence
from itertools import accumulate
from typing import Any

from rich.console import Group, RenderableType
from rich.text import Text

from writer.core.text import instant, limit_words, plural, ranges, span
from writer.core.units import show_size
from writer.output.health import FAILED_BAD, HEADROOM_BAD_S, HEADROOM_LOW_S, SOURCE_OLD_S, failed_records, is_late
from writer.output.route_lines import route_lines
from writer.output.tables import labelled
from writer.scaling.spark_settings import in_one_process

_BLOCKED_SHOWN = 3
_STATES = (("closed", "not sealed yet"), ("reopened", "to be sealed again"), ("open", "open"))
_SHARES = (0.5, 0.99, 0.999)
_POLICIES = {"reopen": "joined their bucket", "late_table": "in the late table", "dead_letter": "dead letters"}


def seal_lines(pipeline: Mapping[str, Any]) -> list[tuple[str, Text]]:
    """Return a label and a text for each line about seals."""
    seals = pipeline["seals"]
    lines = [("lateness", _lateness(pipeline["lateness"], pipeline["totals"]))]
    if seals is None:
        return lines
    return [("watermark", _watermark(seals)), ("sealed", _sealed(seals)), *_trouble(seals), *lines]


def _watermark(seals: Mapping[str, Any]) -> Text:
    if seals["watermark"] is None:
        text = Text("none yet", style="yellow")
    else:
        text = Text(f"{instant(seals['watermark'])}, {span(max(0.0, seals['watermark_delay_seconds']))} ago")
    held, idle = seals["held_by"], len(seals["idle"])
    if held is not None:
        text.append(f"; held by {held['topic']}/{held['partition']}", style="dim")
    return text.append(f"; {plural(idle, 'partition')} idle" if idle else "", style="dim")


def _sealed(seals: Mapping[str, Any]) -> Text:
    until = seals["closed_until"]
    parts = ["nothing is closed yet" if until is None else f"closed until {instant(until)}"]
    parts += [f"{plural(seals[state], 'bucket')} {word}" for state, word in _STATES if seals[state]]
    following = seals["next"]
    if following is not None:
        parts.append(f"next {following['bucket']}, which ends {instant(following['ends'])}")
    return Text(", ".join(parts))


def _trouble(seals: Mapping[str, Any]) -> list[tuple[str, Text]]:
    blocked, more = seals["blocked"][:_BLOCKED_SHOWN], len(seals["blocked"]) - _BLOCKED_SHOWN
    lines = [("blocked", Text(f"{one['bucket']}: {one['reason']}", style="yellow")) for one in blocked]
    if more > 0:
        lines.append(("", Text(f"and {plural(more, 'bucket')} more", style="yellow")))
    return lines + [(one["step"], Text(f"fails: {one['reason']}", style="red")) for one in seals["failing"]]


def _lateness(lateness: Mapping[str, Any], totals: Mapping[str, Any]) -> Text:
    """Return within which time what share of the rows came after their events, and what became of how many late."""
    total, late = sum(lateness["behind"]), totals["late_rows"]
    if not total:
        return Text("")
    shares = [f"{share:.3g}% of rows {_within(lateness['bounds_seconds'], lateness['behind'], share / 100)}"
              for share in (100 * s for s in _SHARES)]  # fmt: skip
    text = Text(", ".join(dict.fromkeys(shares)))
    to = [f"{rows:,} {_POLICIES[name]}" for name, rows in totals.get("late_rows_by", {}).items()]
    which = f": {', '.join(to)}" if len(to) > 1 else ""
    return text.append(f"; {plural(late, 'late row')}{which}", style="yellow") if late else text


def _within(bounds: Sequence[int], bins: Sequence[int], share: float) -> str:
    total = sum(bins)
    for bound, below in zip(bounds, accumulate(bins), strict=False):
        if below >= share * total:
            return f"within {span(bound)}"
    return f"after more than {span(bounds[-1])}"


_SILENT_S = 120  # the autoscaler asks every few seconds; beyond this it is not running, or cannot reach the driver


def executor_lines(document: Mapping[str, Any] | None) -> list[tuple[str, Text]]:
    """Return a label and a text for each fact. `document`: `executors` of the driver's `/status`."""
    if document is None:
        return []
    lines = [("executors", _executors(document))]
    if document["decisions"]:
        lines.append(("autoscaler", _decided(document)))
    return lines


def counts(document: Mapping[str, Any] | None) -> dict[str, int | None]:
    """Return the recommended, requested, registered and draining executors by name; empty without scaling."""
    if document is None or document["requested"] is None:
        return {}
    last = document["decisions"][0] if document["decisions"] else None
    right = document["requested"] if last is None or last["recommended"] is None else last["recommended"]
    return {
        "executors_recommended": right, "executors_requested": document["requested"],
        "executors_registered": document["registered"],
        "executors_draining": len(document["draining"]),
    }  # fmt: skip


def _executors(document: Mapping[str, Any]) -> Text:
    if document["refused"] is not None:
        none = in_one_process(document["master"])
        return Text(f"none, tasks run in the driver ({document['master']})" if none else document["refused"])
    if document["age_seconds"] is None:
        return Text("Spark is starting")
    text = Text(f"{document['registered']} registered")
    if drain := len(document["draining"]):
        text.append(f", {drain} more {'finishes its tasks and goes' if drain == 1 else 'finish their tasks and go'}")
    found = counts(document)
    if not found:
        return text.append("; no autoscaler asks for more or fewer", style="dim")
    requested, right, short_s = document["requested"], found["executors_recommended"], document["short_seconds"]
    if short_s is None:
        text.append(f"; {requested} requested")
    else:
        text.append(f"; {requested} requested, and none came for {span(short_s)}", style="yellow")
    return text if right == requested else text.append(f", {right} recommended")


def _decided(document: Mapping[str, Any]) -> Text:
    last, silent_s = document["decisions"][0], document["asked_seconds"]
    decision = last["decision"] or "requested"
    change = "" if last["from"] in (None, last["to"]) else f" {last['from']} → {last['to']}"
    text = Text(f"{decision}{change}, at {instant(last['at'])}")
    if silent_s is not None and silent_s > _SILENT_S:
        text.append(f", silent for {span(silent_s)}", style="yellow")
    return text.append(f": {last['reason']}" if last["reason"] else "")


_STYLES = {
    "running": "bold green", "starting": "bold cyan", "draining": "bold cyan", "stopped": "bold", "failed": "bold red",
    "unreadable": "bold red", "unknown": "bold yellow", "not started": "bold yellow", "paused": "bold yellow",
}  # fmt: skip
_DECODED = {"native": "natively", "single": "one by one"}
_GAP_RANGES = 2  # that the screen names
_BECAUSE = {
    "size": "enough waited", "backlog": "the batch was full", "timeout": "the delay was over",
    "start": "it was the first of its start", "once": "--once takes what is there",
    "replay": "an earlier start had planned it",
}  # fmt: skip


def screen(document: Mapping[str, Any]) -> RenderableType:
    """Show all pipelines of a status document."""
    blocks: list[RenderableType] = []
    for name, pipeline in document["pipelines"].items():
        blocks += [Text(""), block(name, pipeline)] if blocks else [block(name, pipeline)]
    return Group(*blocks)


def block(name: str, pipeline: Mapping[str, Any]) -> RenderableType:
    """Show one pipeline: a headline, and a line for each thing that an operator asks."""
    return Group(_headline(name, pipeline), labelled((f"  {label}", line) for label, line in _lines(pipeline)))


def line(name: str, pipeline: Mapping[str, Any], at: str) -> str:
    """Put the state on one line, for a pipe or a log."""
    lag, rates, last = pipeline["lag"], pipeline["rates"], pipeline["last_commit"]
    parts = [at, name, f"state={pipeline['state'].replace(' ', '_')}"]
    numbers = {
        "lag_offsets": lag["offsets"], "lag_seconds": lag["seconds"],
        "arriving_per_second": rates["arriving_per_second"], "committed_per_second": rates["committed_per_second"],
        "rate_window_seconds": rates["window_seconds"] if rates["committed_per_second"] is not None else None,
        "catch_up_seconds": rates["catch_up_seconds"], **_limit_numbers(pipeline.get("rate_limit")),
        "version": last and last["version"], "commit_age_seconds": pipeline["commit_age_seconds"],
        **counts(pipeline.get("executors")),
    }  # fmt: skip
    parts += [f"{key}={value:g}" if isinstance(value, float) else f"{key}={value}" for key, value in numbers.items()
              if value is not None]  # fmt: skip
    return " ".join(parts)


def _limit_numbers(limit: Mapping[str, Any] | None) -> dict[str, float | None]:
    if limit is None:
        return {}
    return {f"rate_limit_{key}": limit[key] for key in ("records_per_second", "bytes_per_second")}


def _headline(name: str, pipeline: Mapping[str, Any]) -> Text:
    state = pipeline["state"]
    head = Text.assemble((name, "bold"), "  ", (state, _STYLES.get(state, "")))
    details = []
    driver = pipeline.get("driver")
    if pipeline["source"] == "driver":
        bucket_counts = state in ("starting", "running", "paused", "draining")
        details.append(f"for {span(pipeline['since_seconds'])}" if bucket_counts else "")
        details.append(f"driver {driver['url']}" if driver else "")
    elif state == "unknown":
        missing = f"no driver answers at {driver['url']}" if driver else "no driver has announced itself"
        details.append(f"{missing}; from the table and Kafka")
    elif state == "not started":
        details.append("the table does not exist yet")
    return head.append("  " + " · ".join(filter(None, details)), style="dim")


def _lines(pipeline: Mapping[str, Any]) -> list[tuple[str, Text]]:
    without_records = pipeline["totals"]["offsets_without_records"]
    lines = [
        ("trouble", Text(pipeline["error"], style="red")) if pipeline["error"] else None,
        ("file", config_text(pipeline["config"])) if pipeline.get("config") else None,
        ("paused", _paused(pipeline)) if pipeline["pause"] else None,
        ("rate limit", _limited(pipeline["rate_limit"])) if pipeline.get("rate_limit") else None,
        ("scheduling", _scheduling(pipeline.get("scheduling"))),
        ("epoch", _epoch(pipeline)) if pipeline["epoch"] else None,
        ("lag", _lag(pipeline["lag"], pipeline["limits"])),
        ("log", _log(pipeline)),
        ("flow", _flow(pipeline["rates"])),
        ("batch", _batch(pipeline["batch"])) if pipeline["batch"] else None,
        ("last commit", _last(pipeline)) if pipeline["last_commit"] else None,
        ("reason", Text(_BECAUSE.get(pipeline["last_commit"]["reason"], ""))) if pipeline["last_commit"] else None,
        ("this start", _totals(pipeline["totals"])) if pipeline["epoch"] else None,
        *route_lines(pipeline),
        ("no record", Text(f"{plural(without_records, 'offset')} gave no record", style="yellow"))
        if without_records
        else None,
        ("gaps", _gaps(pipeline["gaps"])) if pipeline["gaps"]["count"] else None,
        ("restarts", Text(f"{plural(pipeline['restarts'], 'time')} by this driver", style="yellow"))
        if pipeline["restarts"]
        else None,
        ("dead letters", _dead_letters(pipeline["totals"])) if pipeline["epoch"] else None,
        ("buckets", _buckets(pipeline)) if pipeline["epoch"] else None,
        *(seal_lines(pipeline) if pipeline["epoch"] else ()),
        *executor_lines(pipeline.get("executors")),
        *(("hook " + name, _hook(hook)) for name, hook in pipeline.get("hooks", {}).items()),
        ("schemas", _schemas(pipeline["schemas"])) if pipeline["schemas"] else None,
        ("retention", _headroom(pipeline["lag"]["headroom_seconds"])),
        ("mirror", Text(f"failed {plural(pipeline['offset_commit_failures'], 'time')}", style="yellow"))
        if pipeline["offset_commit_failures"]
        else None,
    ]
    return [entry for entry in lines if entry is not None and entry[1].plain]


def config_text(config: Mapping[str, Any]) -> Text:
    """Return what of the configuration file is not in force; nothing where all is."""
    wrong = f"not in force since {instant(config['read_at'])}: {config['error']}" if config["error"] else ""
    later = f"needs a restart of the process: {', '.join(config['restart'])}" if config["restart"] else ""
    return Text("; ".join(filter(None, (wrong, later))), "yellow")


def _paused(pipeline: Mapping[str, Any]) -> Text:
    pause = pipeline["pause"]
    text = Text(f"since {pause['at']} by {pause['by']}", style="yellow")
    text.append(f": {pause['reason']}" if pause["reason"] else "")
    return text.append("; the batch under way is finished first" if pipeline["batch"] else "")


def _limited(limit: Mapping[str, Any]) -> Text:
    override, due_s = limit["override"], limit["next_batch_in_seconds"]
    text = Text(limit_words(limit) if override or not limit["error"] else "")
    if override is not None:
        text.append(f", by {override['by']} since {instant(override['at'])}")
        text.append(f": {override['reason']}" if override["reason"] else "")
    if limit["holds"]:
        text.append(f"; the next batch waits {span(max(0.0, due_s or 0.0))} for it, and the lag may grow", "yellow")
    return text.append(f"{'; ' if text.plain else ''}{limit['error']}" if limit["error"] else "", "yellow")


def _scheduling(share: Mapping[str, Any] | None) -> Text:
    if share is None or (share["weight"], share["min_share"]) == (1, 0):
        return Text("")
    least = f", {plural(share['min_share'], 'slot')} before others" if share["min_share"] else ""
    return Text(f"weight {share['weight']}{least}, in pool {share['pool']}")


def _epoch(pipeline: Mapping[str, Any]) -> Text:
    run = f"; run {pipeline['run']}" if pipeline["run"] else ""
    return Text(f"{pipeline['epoch']}, at {instant(pipeline['since'])}{run}")


def _lag(lag: Mapping[str, Any], limits: Mapping[str, Any]) -> Text:
    if lag["offsets"] is None:
        return Text("not known", style="yellow")
    if not lag["offsets"]:
        text = Text("none", style="green")
    else:
        text = Text(plural(lag["offsets"], "offset"), style="yellow" if is_late(lag, limits) else "")
        text.append("" if lag["seconds"] is None else f", the oldest waits {span(lag['seconds'])}")
        worst = lag["worst"]
        if worst and len(lag["partitions"]) > 1:
            text.append(f"; worst {worst['topic']}/{worst['partition']} with {worst['offsets']:,}", style="dim")
    if (lag["source_age_seconds"] or 0) > SOURCE_OLD_S:
        text.append(f"; Kafka has not answered for {span(lag['source_age_seconds'])}", style="yellow")
    return text


def _log(pipeline: Mapping[str, Any]) -> Text:
    """Say how the logs are not those that the table was filled from; nothing where they are."""
    text = Text(pipeline.get("log_moved") or "", style="red")
    for cut in pipeline.get("log_cuts", ()):
        where = f"[{cut['start']:,}, {cut['end']:,}) of {cut['topic']}/{cut['partition']}"
        words = f"Kafka cut a log: rows at {where}, incarnation {cut['incarnation']}, are of records that it lost"
        text.append(f"{'; ' if text.plain else ''}{words}", style="yellow")
    return text


def _flow(rates: Mapping[str, Any]) -> Text:
    shown = [
        f"{round(rates[key]):,} offsets/s {word}"
        for key, word in (("arriving_per_second", "in"), ("committed_per_second", "out"))
        if rates[key] is not None
    ]
    if not shown:
        return Text("")
    text = Text(f"{', '.join(shown)}, mean of {span(rates['window_seconds'])}")
    return text.append("" if rates["catch_up_seconds"] is None else f"; caught up in {span(rates['catch_up_seconds'])}")


def _batch(batch: Mapping[str, Any]) -> Text:
    offsets = "" if batch["offsets"] is None else f" with {plural(batch['offsets'], 'offset')}"
    return Text(
        f"{batch['number']}{offsets}, {batch['phase']} for {span(batch['phase_seconds'])}"
        f" (began {span(batch['seconds'])} ago)"
    )


def _last(pipeline: Mapping[str, Any]) -> Text:
    last = pipeline["last_commit"]
    parts = [
        plural(last["rows"], "row"), plural(last["files"], "file") if last["files"] is not None else "",
        show_size(last["bytes"]) + ("" if last["seconds"] is None else f" in {span(last['seconds'])}"),
    ]  # fmt: skip
    return Text(
        f"version {last['version']}, {span(pipeline['commit_age_seconds'])} ago: {', '.join(filter(None, parts))}"
    )


def _totals(totals: Mapping[str, Any]) -> Text:
    records = totals["records"]
    return Text(
        f"{plural(records['rows'], 'row')} in {plural(sum(totals['commits'].values()), 'commit')}, "
        f"{plural(totals['files'], 'file')}, {show_size(totals['bytes'])}"
    )


def _gaps(gaps: Mapping[str, Any]) -> Text:
    text = Text(f"{plural(gaps['count'], 'gap')} with {plural(gaps['offsets'], 'lost offset')}", style="bold red")
    if (last := gaps["last"]) is not None:
        text.append(f"; the last at {instant(last['at'])}, {ranges(last['ranges'], _GAP_RANGES)} ({last['cause']})")
    return text


def _dead_letters(totals: Mapping[str, Any]) -> Text:
    records, by_rule = totals["records"], totals.get("dead_letters_by_rule", 0)
    bad = records["dead_letters"] + records["quarantined"]
    if not bad:
        return Text("none", style="green")
    share = bad / max(1, records["read"])
    style = "bold red" if failed_records(totals) > FAILED_BAD * records["read"] else "yellow"
    ruled = f" ({by_rule:,} by a rule)" if by_rule else ""
    text = Text(f"{records['dead_letters']:,}{ruled}, and {records['quarantined']:,} quarantined", style=style)
    return text.append(f": {share:.2g} of all read" if share < 0.0001 else f": {share:.2%} of all read")  # noqa: PLR2004


def _buckets(pipeline: Mapping[str, Any]) -> Text:
    delay = pipeline["event_time_newest_age_seconds"]
    newest = "" if delay is None else f", newest event {span(delay)} ago" if delay >= 0 else (
        f", newest event {span(-delay)} ahead"
    )  # fmt: skip
    return Text(f"{pipeline['buckets']:,} with rows{newest}")


def _hook(hook: Mapping[str, Any]) -> Text:
    text = Text(f"{hook['delivered']:,} delivered")
    if hook["waiting"]:
        age = (
            "" if hook["oldest_waiting_seconds"] is None else f", the oldest for {span(hook['oldest_waiting_seconds'])}"
        )
        text.append(f", {hook['waiting']:,} waiting{age}", style="yellow" if hook["error"] else "")
    if hook["error"]:
        text.append(f"; {hook['error']}", style="red")
    return text


def _schemas(schemas: Mapping[str, int]) -> Text:
    text = Text(
        ", ".join(f"{n} decoded {_DECODED.get(name, name)}" for name, n in schemas.items() if n and name != "rejected")
    )
    if schemas["rejected"]:
        text.append(f"{', ' if text.plain else ''}{schemas['rejected']} rejected", style="yellow")
    return text


def _headroom(seconds: float | None) -> Text:
    if seconds is None:
        return Text("")
    style = "bold red" if seconds < HEADROOM_BAD_S else "yellow" if seconds < HEADROOM_LOW_S else ""
    if seconds < 0:
        return Text(f"over since {span(-seconds)}: records are being lost", style=style)
    return Text(f"takes the oldest that waits in {span(seconds)}", style=style)
