"""What a person sees of a driver's executors: how many there are and should be, and what the autoscaler said last."""

from collections.abc import Mapping
from typing import Any

from rich.text import Text

from writer.scaling.elastic import in_one_process
from writer.surface.words import instant, span

_SILENT_S = 120  # who asks does so every few seconds; beyond this it is not running, or cannot reach the driver


def executor_lines(told: Mapping[str, Any] | None) -> list[tuple[str, Text]]:
    """Return a label and a text for each thing that there is to say. `told`: `executors` of the driver's `/status`."""
    if told is None:
        return []
    lines = [("executors", _there(told))]
    if told["decisions"]:
        lines.append(("autoscaler", _decided(told)))
    return lines


def counts(told: Mapping[str, Any] | None) -> dict[str, int | None]:
    """Return how many are wanted, asked for, there, and draining, by name; none of them where nobody scales."""
    if told is None or told["wanted"] is None:
        return {}
    last = told["decisions"][0] if told["decisions"] else None
    right = told["wanted"] if last is None or last["right"] is None else last["right"]
    return {
        "executors_wanted": right, "executors_asked": told["wanted"], "executors_have": told["registered"],
        "executors_draining": len(told["draining"]),
    }  # fmt: skip


def _there(told: Mapping[str, Any]) -> Text:
    if told["refused"] is not None:
        none = in_one_process(told["master"])
        return Text(f"none, tasks run in the driver ({told['master']})" if none else told["refused"])
    if told["age_seconds"] is None:
        return Text("Spark is starting")
    text = Text(f"{told['registered']} there")
    if drain := len(told["draining"]):
        text.append(f", {drain} more {'finishes its tasks and goes' if drain == 1 else 'finish their tasks and go'}")
    found = counts(told)
    if not found:
        return text.append("; nobody asks for more or fewer", style="dim")
    asked, wanted, short_s = told["wanted"], found["executors_wanted"], told["short_seconds"]
    if short_s is None:
        text.append(f"; {asked} asked for")
    else:
        text.append(f"; {asked} asked for, and none came for {span(short_s)}", style="yellow")
    return text if wanted == asked else text.append(f", {wanted} wanted")


def _decided(told: Mapping[str, Any]) -> Text:
    last, silent_s = told["decisions"][0], told["asked_seconds"]
    who = last["verdict"] or "somebody asked"
    change = "" if last["from"] in (None, last["to"]) else f" {last['from']} → {last['to']}"
    text = Text(f"{who}{change}, at {instant(last['at'])}")
    if silent_s is not None and silent_s > _SILENT_S:
        text.append(f", silent for {span(silent_s)}", style="yellow")
    return text.append(f": {last['reason']}" if last["reason"] else "")
