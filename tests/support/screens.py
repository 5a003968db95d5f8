"""Figures of a pipeline as each screen of headrace shows them, by the same names."""

import json
import os
import pty
import re
import signal
import struct
import subprocess
import sys
import termios
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass
from fcntl import ioctl
from typing import Any
from urllib.request import urlopen

from prometheus_client.parser import text_string_to_metric_families

_ESCAPES = re.compile(r"\x1b\[[0-9;?]*[A-Za-z]")
_LINES_OF_SCREEN = 200


@dataclass(frozen=True)
class Figures:
    """What one screen says of a pipeline. None: it says that it does not know."""

    lag_offsets: int | None
    table_rows: int | None
    dead_letters: int | None
    gaps: int
    gap_offsets: int


def run_in_terminal(width: int, *arguments: str) -> str:
    """Run a command in a terminal of so many columns. Returns what stands there, without colours."""
    main_end, command_end = pty.openpty()
    ioctl(command_end, termios.TIOCSWINSZ, struct.pack("HHHH", _LINES_OF_SCREEN, width, 0, 0))
    environment = {name: value for name, value in os.environ.items() if name not in ("COLUMNS", "LINES")}
    process = subprocess.Popen(
        [sys.executable, "-m", "headrace.writer.cli", *arguments],
        stdin=subprocess.DEVNULL,
        stdout=command_end,
        stderr=subprocess.STDOUT,
        env={**environment, "TERM": "xterm"},
    )
    os.close(command_end)
    output = b""
    # The terminal is gone once the command has ended.
    with suppress(OSError):
        while chunk := os.read(main_end, 65_536):
            output += chunk
    os.close(main_end)
    process.wait(60)
    return _ESCAPES.sub("", output.decode()).replace("\r", "")


def first_lines(count: int, *arguments: str) -> list[str]:
    """Run a command into a pipe, and end it as Ctrl-C does once it has printed so many lines."""
    process = subprocess.Popen(
        [sys.executable, "-m", "headrace.writer.cli", *arguments],
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        text=True,
    )
    assert process.stdout is not None
    lines = [process.stdout.readline().rstrip("\n") for _ in range(count)]
    process.send_signal(signal.SIGINT)
    process.communicate(timeout=60)
    return lines


def blocks(screen: str) -> dict[str, dict[str, str]]:
    """Return the lines of `headrace status` by pipeline and label; a text that is folded is one again."""
    pipelines: dict[str, dict[str, str]] = {}
    lines: dict[str, str] = {}
    label = "headline"
    for row in screen.splitlines():
        labelled = re.match(r"  ([a-z]+(?: [a-z]+)*)  +(.*)$", row)
        if labelled:
            label = labelled[1]
            lines[label] = labelled[2].rstrip()
        elif re.match(r"\S+  \S", row):
            label = "headline"
            lines = {label: row.rstrip()}
            pipelines[row.split()[0]] = lines
        elif row.strip():
            lines[label] += f" {row.strip()}"
    return pipelines


def number(text: str) -> int | None:
    """Return the first number of a text. None and no are 0; what is not known is None."""
    if text.startswith(("not known", "?")):
        return None
    match = re.search(r"\d[\d,]*", text)
    if match is None:
        return 0
    return int(match[0].replace(",", ""))


def figures_of_block(lines: Mapping[str, str]) -> Figures:
    """Read the lines of a pipeline in `headrace status`."""
    gaps = re.match(r"([\d,]+) gaps? open, ([\d,]+) offsets?", lines.get("gaps", "0 gaps open, 0 offsets"))
    assert gaps is not None, lines
    dead_letters = 0
    if "in their table" in lines["dead letters"] and not lines["dead letters"].startswith("none"):
        dead_letters = number(lines["dead letters"]) or 0
    return Figures(
        lag_offsets=number(lines["lag"]),
        table_rows=number(lines["table"]),
        dead_letters=dead_letters,
        gaps=number(gaps[1]) or 0,
        gap_offsets=number(gaps[2]) or 0,
    )


def figures_of_document(pipeline: Mapping[str, Any]) -> Figures:
    """Read a pipeline's part of `/status` or of `headrace status --json`."""
    return Figures(
        lag_offsets=pipeline["lag"]["offsets"],
        table_rows=pipeline["table"]["rows"],
        dead_letters=pipeline["table"]["dead_letters"],
        gaps=pipeline["gaps"]["count"],
        gap_offsets=pipeline["gaps"]["offsets"],
    )


def scrape(url: str) -> dict[str, dict[str, float]]:
    """Return metrics by pipeline and name, summed over their other labels."""
    with urlopen(f"{url}/metrics", timeout=60) as response:
        text = response.read().decode()
    sums: dict[str, dict[str, float]] = {}
    for family in text_string_to_metric_families(text):
        for sample in family.samples:
            values = sums.setdefault(sample.labels.get("pipeline", ""), {})
            values[sample.name] = values.get(sample.name, 0) + sample.value
    return sums


def figures_of_metrics(values: Mapping[str, float], lag_age_max_s: float) -> Figures:
    """Read a pipeline's metrics. A lag that Kafka answered too long ago is not known."""
    lag = None
    if values["headrace_lag_source_age_seconds"] <= lag_age_max_s:
        lag = int(values["headrace_lag_offsets"])
    return Figures(
        lag_offsets=lag,
        table_rows=int(values["headrace_table_rows"]),
        dead_letters=int(values["headrace_dead_letter_rows"]),
        gaps=int(values["headrace_gaps_open"]),
        gap_offsets=int(values["headrace_gap_offsets_open"]),
    )


def driver_pipelines(url: str) -> dict[str, Any]:
    """Ask a driver for `/status`."""
    with urlopen(f"{url}/status", timeout=60) as response:
        pipelines: dict[str, Any] = json.loads(response.read())["pipelines"]
    return pipelines
