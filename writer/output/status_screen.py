"""Shows a pipeline's status: several lines on a terminal, one line at a time in a log."""

import json
from collections.abc import Mapping, Sequence
from itertools import accumulate
from typing import Any

from rich.console import Group, RenderableType
from rich.text import Text

from headrace.writer.core.text import describe_limit, instant, plural, span
from headrace.writer.core.units import show_size
from headrace.writer.output.health import HEADROOM_BAD_S, HEADROOM_LOW_S, health, is_late
from headrace.writer.output.route_lines import route_lines
from headrace.writer.output.table_lines import buckets_text, contents_text, dead_letters_text, gaps_text, sums_text
from headrace.writer.output.tables import label_grid
from headrace.writer.scaling.spark_settings import in_one_process

_BLOCKED_SHOWN = 3
_SHARES = (0.5, 0.99, 0.999)
_POLICIES = {"reopen": "joined their bucket", "late_table": "in the late table", "dead_letter": "dead letters"}


def seal_lines(pipeline: Mapping[str, Any]) -> list[tuple[str, Text]]:
    """Return a label and a text for each line about seals."""
    seals = pipeline["seals"]
    lines = [("lateness", _lateness(pipeline["lateness"], pipeline["totals"]))]
    if seals is None:
        return lines
    return [("watermark", _watermark(seals)), ("sealed", _seal_progress(seals)), *_trouble(seals), *lines]


def _watermark(seals: Mapping[str, Any]) -> Text:
    if seals["watermark"] is None:
        text = Text("none yet", style="yellow")
    else:
        text = Text(f"{instant(seals['watermark'])}, {span(max(0.0, seals['watermark_delay_seconds']))} ago")
    partition = seals["held_by"]
    if partition is not None:
        text.append(f"; held by {partition['topic']}/{partition['partition']}", style="dim")
    if seals["idle"]:
        text.append(f"; {plural(len(seals['idle']), 'partition')} idle", style="dim")
    return text


def _seal_progress(seals: Mapping[str, Any]) -> Text:
    closed_until = seals["closed_until"]
    parts = ["nothing is closed yet"]
    if closed_until is not None:
        parts = [f"closed until {instant(closed_until)}"]
    counts = {name: seals[name] for name in ("closed", "reopened", "open")}
    counts["blocked"] = len(seals["blocked"])
    parts += [f"{plural(count, 'bucket')} {name}" for name, count in counts.items() if count]
    next_bucket = seals["next"]
    if next_bucket is not None:
        parts.append(f"next {next_bucket['bucket']}, which ends {instant(next_bucket['ends'])}")
    return Text(", ".join(parts))


def _trouble(seals: Mapping[str, Any]) -> list[tuple[str, Text]]:
    blocked = seals["blocked"][:_BLOCKED_SHOWN]
    more = len(seals["blocked"]) - _BLOCKED_SHOWN
    lines = [("blocked", Text(f"{bucket['bucket']}: {bucket['reason']}", style="yellow")) for bucket in blocked]
    if more > 0:
        lines.append(("", Text(f"and {plural(more, 'bucket')} more", style="yellow")))
    return lines + [(step["step"], Text(f"fails: {step['reason']}", style="red")) for step in seals["failing"]]


def _lateness(lateness: Mapping[str, Any], totals: Mapping[str, Any]) -> Text:
    """Return how soon after their events which share of the rows came, and where late rows went."""
    total = sum(lateness["behind"])
    late = totals["late_rows"]
    if not total:
        return Text("")
    shares = [
        f"{100 * share:.3g}% of rows {_within(lateness['bounds_seconds'], lateness['behind'], share)}"
        for share in _SHARES
    ]
    text = Text(", ".join(dict.fromkeys(shares)))
    if not late:
        return text
    policies = [f"{rows:,} {_POLICIES[name]}" for name, rows in totals.get("late_rows_by", {}).items()]
    text.append(f"; {plural(late, 'late row')}", style="yellow")
    if len(policies) > 1:
        text.append(f": {', '.join(policies)}", style="yellow")
    return text


def _within(bounds: Sequence[int], bins: Sequence[int], share: float) -> str:
    total = sum(bins)
    for bound, below in zip(bounds, accumulate(bins), strict=False):
        if below >= share * total:
            return f"within {span(bound)}"
    return f"after more than {span(bounds[-1])}"


# The autoscaler asks every few seconds. Beyond this it does not run, or cannot reach the driver.
_SILENT_S = 120


def executor_lines(document: Mapping[str, Any] | None) -> list[tuple[str, Text]]:
    """Return a label and a text for each fact. `document`: `executors` of the driver's `/status`."""
    if document is None:
        return []
    lines = [("executors", _executors(document))]
    if document["decisions"]:
        lines.append(("autoscaler", _last_decision(document)))
    return lines


def counts(document: Mapping[str, Any] | None) -> dict[str, int | None]:
    """Return the recommended, requested, registered and draining executors by name; empty without scaling."""
    if document is None or document["requested"] is None:
        return {}
    recommended = document["requested"]
    if document["decisions"] and document["decisions"][0]["recommended"] is not None:
        recommended = document["decisions"][0]["recommended"]
    return {
        "executors_recommended": recommended,
        "executors_requested": document["requested"],
        "executors_registered": document["registered"],
        "executors_draining": len(document["draining"]),
    }


def _executors(document: Mapping[str, Any]) -> Text:
    if document["refused"] is not None:
        if in_one_process(document["master"]):
            return Text(f"none, tasks run in the driver ({document['master']})")
        return Text(document["refused"])
    if document["age_seconds"] is None:
        return Text("Spark is starting")
    text = Text(f"{document['registered']} registered")
    draining = len(document["draining"])
    if draining == 1:
        text.append(", 1 more finishes its tasks and goes")
    elif draining:
        text.append(f", {draining} more finish their tasks and go")
    executors = counts(document)
    if not executors:
        return text.append("; no autoscaler asks for more or fewer", style="dim")
    requested = document["requested"]
    recommended = executors["executors_recommended"]
    short_s = document["short_seconds"]
    if short_s is None:
        text.append(f"; {requested} requested")
    else:
        text.append(f"; {requested} requested, and none came for {span(short_s)}", style="yellow")
    if recommended != requested:
        text.append(f", {recommended} recommended")
    return text


def _last_decision(document: Mapping[str, Any]) -> Text:
    last = document["decisions"][0]
    silent_s = document["asked_seconds"]
    text = Text(last["decision"] or "requested")
    if last["from"] not in (None, last["to"]):
        text.append(f" {last['from']} → {last['to']}")
    text.append(f", at {instant(last['at'])}")
    if silent_s is not None and silent_s > _SILENT_S:
        text.append(f", silent for {span(silent_s)}", style="yellow")
    if last["reason"]:
        text.append(f": {last['reason']}")
    return text


_STYLES = {
    "running": "bold green",
    "starting": "bold cyan",
    "draining": "bold cyan",
    "stopped": "bold",
    "failed": "bold red",
    "unreadable": "bold red",
    "unknown": "bold yellow",
    "not started": "bold yellow",
    "paused": "bold yellow",
    "waiting": "bold yellow",
}
_DECODED = {"native": "natively", "single": "one by one"}
_BECAUSE = {
    "size": "enough waited",
    "backlog": "the batch was full",
    "timeout": "the delay was over",
    "start": "it was the first of its start",
    "once": "--once takes what is there",
    "replay": "an earlier start had planned it",
}


def screen(document: Mapping[str, Any]) -> RenderableType:
    """Show all pipelines of a status document."""
    blocks: list[RenderableType] = []
    for name, pipeline in document["pipelines"].items():
        if blocks:
            blocks.append(Text(""))
        blocks.append(block(name, pipeline))
    return Group(*blocks)


def block(name: str, pipeline: Mapping[str, Any]) -> RenderableType:
    """Show one pipeline: a headline, and a line for each thing that an operator asks."""
    return Group(_headline(name, pipeline), label_grid((f"  {label}", line) for label, line in _lines(pipeline)))


def line(name: str, pipeline: Mapping[str, Any], time: str) -> str:
    """Return the state on one line, for a pipe or a log; what is wrong comes last. `time`: of the state."""
    lag = pipeline["lag"]
    rates = pipeline["rates"]
    last = pipeline["last_commit"]
    state_health = health(pipeline)
    parts = [time, name, f"state={pipeline['state'].replace(' ', '_')}", f"health={state_health.level}"]
    numbers = {
        "lag_offsets": lag["offsets"],
        "lag_seconds": lag["seconds"],
        "arriving_per_second": rates["arriving_per_second"],
        "committed_per_second": rates["committed_per_second"],
        "rate_window_seconds": rates["window_seconds"] if rates["committed_per_second"] is not None else None,
        "catch_up_seconds": rates["catch_up_seconds"],
        **_limit_numbers(pipeline.get("rate_limit")),
        "version": last and last["version"],
        "commit_age_seconds": pipeline["commit_age_seconds"],
        **counts(pipeline.get("executors")),
    }
    parts += [
        f"{key}={value:g}" if isinstance(value, float) else f"{key}={value}"
        for key, value in numbers.items()
        if value is not None
    ]
    if state_health.reasons:
        parts.append(f"trouble={json.dumps('; '.join(state_health.reasons), ensure_ascii=False)}")
    return " ".join(parts)


def _limit_numbers(limit: Mapping[str, Any] | None) -> dict[str, float | None]:
    if limit is None:
        return {}
    return {f"rate_limit_{key}": limit[key] for key in ("records_per_second", "bytes_per_second")}


def _headline(name: str, pipeline: Mapping[str, Any]) -> Text:
    state = pipeline["state"]
    for key, word, style in (("halted", "HALTED", "bold red"), ("lease_wait", "WAITS", "bold yellow")):
        if record := pipeline.get(key):
            text = f"{word} since {instant(record['since'])}: {record['reason']}"
            return Text.assemble((name, "bold"), "  ", (text, style))
    head = Text.assemble((name, "bold"), "  ", (state, _STYLES.get(state, "")))
    details = []
    driver = pipeline.get("driver")
    if pipeline["source"] == "driver":
        if state in ("starting", "running", "paused", "draining"):
            details.append(f"driver up {span(pipeline['since_seconds'])}")
        if driver:
            details.append(f"driver {driver['url']}")
    elif state == "unknown":
        missing = "no driver has announced itself"
        if driver:
            missing = f"no driver answers at {driver['url']}"
        details.append(f"{missing}; from the table and Kafka")
    elif state == "not started":
        details.append("the table does not exist yet")
    return head.append("  " + " · ".join(details), style="dim")


def _lines(pipeline: Mapping[str, Any]) -> list[tuple[str, Text]]:
    """Return a label and a text for each line of a pipeline. A line without a text is left out."""
    totals = pipeline["totals"]
    lines = [
        ("trouble", _trouble_text(pipeline)),
        ("file", config_text(pipeline.get("config"))),
        ("paused", _pause(pipeline)),
        ("rate limit", _rate_limit(pipeline.get("rate_limit"))),
        ("old buckets", _retention_waits(pipeline.get("retention_waits"))),
        ("scheduling", _scheduling(pipeline.get("scheduling"))),
        ("epoch", _epoch(pipeline)),
        ("lag", _lag(pipeline["lag"], pipeline["limits"])),
        ("log", _log(pipeline)),
        ("flow", _flow(pipeline["rates"])),
        ("batch", _batch(pipeline["batch"])),
        ("registry", _registry_wait(pipeline.get("registry_wait"))),
        *_last_commit_lines(pipeline),
    ]
    if pipeline["epoch"]:
        lines += [("table", contents_text(pipeline)), ("this start", sums_text(totals))]
    lines += [
        *route_lines(pipeline),
        ("no record", _count(totals["offsets_without_records"], "offset", " gave no record")),
        ("gaps", gaps_text(pipeline["gaps"])),
        ("restarts", _count(pipeline["restarts"], "time", " by this driver")),
    ]
    if pipeline["epoch"]:
        lines += [
            ("dead letters", dead_letters_text(pipeline)),
            ("buckets", buckets_text(pipeline)),
            *seal_lines(pipeline),
        ]
    lines += [
        *executor_lines(pipeline.get("executors")),
        *(("hook " + name, _hook(hook)) for name, hook in pipeline.get("hooks", {}).items()),
        ("schemas", _schemas(pipeline["schemas"])),
        ("retention", _headroom(pipeline["lag"]["headroom_seconds"])),
    ]
    if pipeline["offset_commit_failures"]:
        lines.append(("mirror", Text(f"failed {plural(pipeline['offset_commit_failures'], 'time')}", style="yellow")))
    return [(label, text) for label, text in lines if text.plain]


def _trouble_text(pipeline: Mapping[str, Any]) -> Text:
    """Return the error of a pipeline; empty where the headline says it."""
    error = pipeline["error"] or ""
    halted = pipeline.get("halted")
    if halted and error in halted["reason"]:
        return Text()
    return Text(error, style="red")


def _count(count: int | None, noun: str, suffix: str) -> Text:
    """Return a count in a sentence; empty for none."""
    if not count:
        return Text()
    return Text(f"{plural(count, noun)}{suffix}", style="yellow")


def config_text(config: Mapping[str, Any] | None) -> Text:
    """Return what of the configuration file is not in force; empty if all is, or if no file is known."""
    if not config:
        return Text()
    parts = []
    if config["error"]:
        parts.append(f"not in force since {instant(config['read_at'])}: {config['error']}")
    if config["restart"]:
        parts.append(f"needs a restart of the process: {', '.join(config['restart'])}")
    return Text("; ".join(parts), "yellow")


def _pause(pipeline: Mapping[str, Any]) -> Text:
    pause = pipeline["pause"]
    if not pause:
        return Text()
    text = Text(pause["text"], style="yellow")
    if pipeline["batch"]:
        text.append("; the batch under way is finished first")
    return text


def _retention_waits(waits: Sequence[Mapping[str, Any]] | None) -> Text:
    """Return which retentions of the file are not in force; empty if all are, or it is not known."""
    return Text("; ".join(wait["text"] for wait in waits or ()), "yellow")


def _rate_limit(limit: Mapping[str, Any] | None) -> Text:
    if not limit:
        return Text()
    override = limit["override"]
    text = Text()
    if override or not limit["error"]:
        text.append(describe_limit(limit))
    if override is not None:
        text.append(f", by {override['by']} since {instant(override['at'])}")
        if override["reason"]:
            text.append(f": {override['reason']}")
    if limit["holds"]:
        wait_s = max(0.0, limit["next_batch_in_seconds"] or 0.0)
        text.append(f"; the next batch waits {span(wait_s)} for it, and the lag may grow", "yellow")
    if limit["error"]:
        _append_part(text, limit["error"])
    return text


def _append_part(text: Text, part: str, separator: str = "; ") -> None:
    """Append a part in yellow, behind a separator if the text has one before it."""
    if text.plain:
        part = separator + part
    text.append(part, "yellow")


def _scheduling(share: Mapping[str, Any] | None) -> Text:
    if share is None or (share["weight"], share["min_share"]) == (1, 0):
        return Text("")
    text = f"weight {share['weight']}"
    if share["min_share"]:
        text += f", {plural(share['min_share'], 'slot')} before others"
    return Text(f"{text}, in pool {share['pool']}")


def _epoch(pipeline: Mapping[str, Any]) -> Text:
    if not pipeline["epoch"]:
        return Text()
    text = Text(str(pipeline["epoch"]))
    if pipeline["epoch_began"] is not None:
        text.append(f", since {instant(pipeline['epoch_began'])}")
    if pipeline["run"]:
        text.append(f"; run {pipeline['run']}")
    return text


def _lag(lag: Mapping[str, Any], limits: Mapping[str, Any]) -> Text:
    if lag["offsets"] is None:
        text = Text("not known", style="yellow")
        if lag["at"] is not None:
            text.append(f" since {instant(lag['at'])}, {span(lag['source_age_seconds'])} ago")
        return text
    if not lag["offsets"]:
        text = Text("none", style="green")
    else:
        text = Text(plural(lag["offsets"], "offset"), style="yellow" if is_late(lag, limits) else "")
        if lag["seconds"] is not None:
            text.append(f", the oldest waits {span(lag['seconds'])}")
        worst = lag["worst"]
        if worst and len(lag["partitions"]) > 1:
            text.append(f"; worst {worst['topic']}/{worst['partition']} with {worst['offsets']:,}", style="dim")
    return text


def _log(pipeline: Mapping[str, Any]) -> Text:
    """Return how the logs differ from those that the table was filled from; empty if they do not."""
    text = Text(pipeline.get("log_moved") or "", style="red")
    for cut in pipeline.get("log_cuts", ()):
        where = f"[{cut['start']:,}, {cut['end']:,}) of {cut['topic']}/{cut['partition']}"
        _append_part(
            text, f"Kafka cut a log: rows at {where}, incarnation {cut['incarnation']}, are of records that it lost"
        )
    return text


def _flow(rates: Mapping[str, Any]) -> Text:
    flows = []
    if rates["arriving_per_second"] is not None:
        flows.append(f"{round(rates['arriving_per_second']):,} offsets/s in")
    if rates["committed_per_second"] is not None:
        flows.append(f"{round(rates['committed_per_second']):,} offsets/s out")
    if not flows:
        return Text("")
    text = Text(f"{', '.join(flows)}, mean of {span(rates['window_seconds'])}")
    if rates["catch_up_seconds"] is not None:
        text.append(f"; caught up in {span(rates['catch_up_seconds'])}")
    return text


def _batch(batch: Mapping[str, Any] | None) -> Text:
    if not batch:
        return Text()
    text = Text(str(batch["number"]))
    if batch["offsets"] is not None:
        text.append(f" with {plural(batch['offsets'], 'offset')}")
    phase = f"{batch['phase']} for {span(batch['phase_seconds'])}"
    return text.append(f", {phase} (began {span(batch['seconds'])} ago)")


def _registry_wait(wait: Mapping[str, Any] | None) -> Text:
    return Text("" if wait is None else f"the batch {wait['text']}", style="yellow")


def _last_commit_lines(pipeline: Mapping[str, Any]) -> list[tuple[str, Text]]:
    """Return the lines about the last commit and the reason why it came when it did; none without a commit."""
    commit = pipeline["last_commit"]
    if not commit:
        return []
    text = Text(f"version {commit['version']}, {span(pipeline['commit_age_seconds'])} ago: ")
    text.append(plural(commit["rows"], "row"))
    if commit["files"] is not None:
        text.append(f", {plural(commit['files'], 'file')}")
    text.append(f", {show_size(commit['bytes'])}")
    if commit["seconds"] is not None:
        text.append(f" in {span(commit['seconds'])}")
    return [("last commit", text), ("reason", Text(_BECAUSE.get(commit["reason"], "")))]


def _hook(hook: Mapping[str, Any]) -> Text:
    text = Text(f"{hook['delivered']:,} delivered")
    since_start = hook["delivered_since_start"]
    if since_start is not None:
        text.append(f", {since_start:,} of them since the start")
    if hook["waiting"]:
        waiting = f", {hook['waiting']:,} waiting"
        if hook["oldest_waiting_seconds"] is not None:
            waiting += f", the oldest for {span(hook['oldest_waiting_seconds'])}"
        text.append(waiting, style="yellow" if hook["error"] else "")
    if hook["error"]:
        text.append(f"; {hook['error']}", style="red")
    return text


def _schemas(schemas: Mapping[str, int] | None) -> Text:
    if not schemas:
        return Text()
    text = Text(
        ", ".join(f"{n} decoded {_DECODED.get(name, name)}" for name, n in schemas.items() if n and name != "rejected")
    )
    if schemas["rejected"]:
        _append_part(text, f"{schemas['rejected']} rejected", ", ")
    return text


def _headroom(seconds: float | None) -> Text:
    if seconds is None:
        return Text("")
    style = ""
    if seconds < HEADROOM_BAD_S:
        style = "bold red"
    elif seconds < HEADROOM_LOW_S:
        style = "yellow"
    if seconds < 0:
        return Text(f"over since {span(-seconds)}: records are being lost", style=style)
    return Text(f"takes the oldest that waits in {span(seconds)}", style=style)
