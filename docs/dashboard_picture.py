"""Draws docs/images/dashboard.png: the dashboard's own expressions over a real run. `make dashboard-picture`.

A broker, a registry, a supervisor with a real driver, and producers that come and go for some minutes; the driver is
killed once. What `/metrics` of both says is kept, and evaluated as Prometheus would. No Grafana is at hand where only
package registries are; its place is taken by matplotlib, its panels, units and legends are those of the file.
"""

import json
import math
import re
import signal
import sys
import tempfile
import time
from collections.abc import Sequence
from contextlib import suppress
from datetime import UTC, datetime
from pathlib import Path
from random import Random
from typing import Any
from urllib.request import urlopen

import psutil
from confluent_kafka.admin import AdminClient, NewTopic
from prometheus_client.parser import text_string_to_metric_families

from tests import promql
from tests.promql import Series, evaluate
from tests.supervising import Supervised, supervise
from tests.writing import Site
from writer.demo.devstack.events import produce
from writer.demo.devstack.stack import Stack

_ROOT = Path(__file__).parents[1]
_BOARD = _ROOT / "helm" / "headrace" / "dashboards" / "headrace.json"
_PICTURE = Path(__file__).parent / "images" / "dashboard.png"
_KEPT = _ROOT / "build" / "dashboard.json"
_WINDOW = "1m"  # of rates: this run commits every 20 seconds
_SCRAPE_S, _RUN_S, _KILL_AT_S = 4.0, 420.0, 200.0
_COLOURS = (
    "#3274d9",
    "#e0752d",
    "#56a64b",
    "#a352cc",
    "#e02f44",
    "#f2cc0c",
    "#37872d",
    "#8ab8ff",
    "#ffa6b0",
    "#705da0",
)
_LINES_MAX = 8  # in one panel's legend
Kept = dict[tuple[str, frozenset[tuple[str, str]]], list[tuple[float, float]]]


def main() -> None:
    """Run, scrape, draw; `--again`: only draw what was scraped last."""
    if "--again" in sys.argv:
        _draw([Series(name, frozenset(map(tuple, labels)), samples) for name, labels, samples in _scrapes()])
        return
    with tempfile.TemporaryDirectory() as folder, Stack(Path(folder) / "servers") as stack:
        site = Site(Path(folder), stack.broker.bootstrap, stack.registry.url)
        kept = _lived(site)
    _KEPT.parent.mkdir(exist_ok=True)
    _KEPT.write_text(json.dumps([[name, sorted(labels), samples] for (name, labels), samples in kept.items()]))
    _draw(_series(kept))


def _scrapes() -> list[tuple[str, list[tuple[str, str]], list[tuple[float, float]]]]:
    return list(json.loads(_KEPT.read_text(encoding="utf-8")))


def _lived(site: Site) -> Kept:
    admin = AdminClient({"bootstrap.servers": site.bootstrap})
    admin.create_topics([NewTopic("clicks", 4, 1)])["clicks"].result(timeout=30)
    site.pipeline(
        "clicks", ["clicks"], commit={"max_delay": "20 s"}, compact={"at_seal": False},
        seal={"out_of_orderness": "5 min", "reopen_after": "30 s"},
    )  # fmt: skip
    site.overrides["kafka"] = {"bootstrap_servers": site.bootstrap, "lag_interval": "2 s"}
    _produce(site, 60_000, seed=0, hours=30)
    running = supervise(site)
    try:
        return _scraped(site, running)
    finally:
        running.stop()


def _scraped(site: Site, running: Supervised) -> Kept:
    kept: Kept = {}
    running.until(lambda: running.times("batch_committed") > 0, 600)
    began_s, killed, rnd = time.monotonic(), False, Random(1)  # noqa: S311 - made-up load
    seed = 1
    while (at_s := time.monotonic() - began_s) < _RUN_S:
        load = 2_500 + 1_800 * math.sin(at_s / 60) + rnd.uniform(0, 400)
        late = int(load / 50) if seed % 6 == 0 else 0
        _produce(site, int(load), seed=seed, hours=1, broken=seed % 3, late=late)
        seed += 1
        for url in _urls(site, running):
            with suppress(OSError):
                _keep(kept, url, at_s)
        if at_s > _KILL_AT_S and not killed:
            killed = True
            psutil.Process(running.drivers()[-1]).send_signal(signal.SIGKILL)
        time.sleep(max(0.0, _SCRAPE_S - (time.monotonic() - began_s - at_s)))
    return kept


def _produce(site: Site, n: int, **how: int) -> None:
    produce(site.bootstrap, site.registry_url, "clicks", n, now=datetime.now(UTC), kind="clicks", **how)


def _urls(site: Site, running: Supervised) -> list[str]:
    said = re.findall(r"supervisor_listening url=(\S+)", running.said())
    with suppress(OSError, ValueError):
        said.append(json.loads((site.root / "checkpoints" / "clicks" / "driver.json").read_text())["url"])
    return said


def _keep(kept: Kept, url: str, at_s: float) -> None:
    with urlopen(f"{url}/metrics", timeout=2) as answer:  # noqa: S310 - loopback
        text = answer.read().decode()
    for family in text_string_to_metric_families(text):
        for sample in family.samples:
            kept.setdefault((sample.name, frozenset(sample.labels.items())), []).append((at_s, sample.value))


def _series(kept: Kept) -> list[Series]:
    return [Series(name, labels, samples) for (name, labels), samples in kept.items()]


def _draw(data: Sequence[Series]) -> None:
    import matplotlib as mpl

    mpl.use("Agg")
    from matplotlib import pyplot as plt

    plt.rcParams.update(
        {
            "font.size": 7, "axes.facecolor": "#181b1f", "figure.facecolor": "#111217", "text.color": "#ccccdc",
            "axes.edgecolor": "#2c3235", "xtick.color": "#8e8e99", "ytick.color": "#8e8e99",
        }
    )  # fmt: skip
    promql.LOOKBACK_S = 3 * _SCRAPE_S  # a server that does not answer is stale at once, as Prometheus has it
    board = json.loads(_BOARD.read_text(encoding="utf-8"))
    shown = [panel for panel in board["panels"] if panel["type"] == "row" or _found(panel, data, _RUN_S)]
    bottom = max(panel["gridPos"]["y"] + panel["gridPos"]["h"] for panel in board["panels"])
    figure = plt.figure(figsize=(15, bottom * 0.3))
    for panel in board["panels"]:
        at, h = panel["gridPos"], bottom
        left, low = at["x"] / 24, 1 - (at["y"] + at["h"]) / h
        if panel["type"] == "row":
            figure.text(0.008, low + 0.3 / h, f"⌄ {panel['title']}", fontsize=9, weight="bold")
            continue
        box = (left + 0.037, low + 1.5 / h, at["w"] / 24 - 0.047, (at["h"] - 2.6) / h)
        if panel["type"] == "stat":
            box = (left + 0.004, low + 0.15 / h, at["w"] / 24 - 0.008, (at["h"] - 0.3) / h)
        axes = figure.add_axes(box)
        (_stat if panel["type"] == "stat" else _lines)(axes, panel, data, has=panel in shown)
    figure.savefig(_PICTURE, dpi=80)


def _found(panel: dict[str, Any], data: Sequence[Series], at_s: float) -> dict[str, float]:
    """Values of a panel at an instant, by the words of its legend."""
    found: dict[str, float] = {}
    for target in panel["targets"]:
        for labels, value in evaluate(
            target["expr"].replace("$pipeline", ".*").replace("$window", _WINDOW), data, at_s
        ).items():
            words = re.sub(r"{{(\w+)}}", lambda m, known=dict(labels): known.get(m[1], ""), target["legendFormat"])
            if math.isfinite(value):
                found[words] = value
    return found


def _stat(axes: Any, panel: dict[str, Any], data: Sequence[Series], *, has: bool) -> None:
    axes.set_xticks([])
    axes.set_yticks([])
    values = list(_found(panel, data, _RUN_S).values()) if has else []
    steps = panel["fieldConfig"]["defaults"]["thresholds"]["steps"]
    bad = values and len(steps) > 1 and max(values) >= steps[1]["value"]
    axes.text(0.03, 0.86, panel["title"], transform=axes.transAxes, fontsize=8, weight="bold", va="top")
    words = _shown(max(values), panel["fieldConfig"]["defaults"]["unit"]) if values else "nothing waits"
    colour = "#e02f44" if bad else "#73bf69"
    axes.text(0.5, 0.36, words, transform=axes.transAxes, fontsize=19, ha="center", va="center", color=colour)


def _lines(axes: Any, panel: dict[str, Any], data: Sequence[Series], *, has: bool) -> None:
    defaults = panel["fieldConfig"]["defaults"]
    axes.set_title(panel["title"], loc="left", fontsize=8, weight="bold", color="#ccccdc", pad=5)
    axes.grid(visible=True, color="#2c3235", linewidth=0.5)
    axes.set_xlim(0, _RUN_S)
    if not has:
        axes.text(0.5, 0.5, "No data", transform=axes.transAxes, ha="center", color="#8e8e99", fontsize=10)
    instants = [n * _SCRAPE_S for n in range(3, int(_RUN_S / _SCRAPE_S) + 1)]
    at = [_found(panel, data, instant) for instant in instants]
    names = list(dict.fromkeys(name for one in at for name in one))
    lines = {name: [one.get(name, math.nan) for one in at] for name in names}
    stacked = defaults["custom"]["stacking"]["mode"] == "normal"
    if stacked and lines:
        filled = [[0.0 if math.isnan(v) else v for v in line] for line in lines.values()]
        axes.stackplot(instants, filled, labels=names, colors=_COLOURS, alpha=0.65, linewidth=0)
    for colour, (name, line) in zip(_COLOURS * 9, () if stacked else lines.items(), strict=False):
        axes.plot(instants, line, label=name, color=colour, linewidth=1.1)
        axes.fill_between(instants, line, color=colour, alpha=0.08, linewidth=0)
    axes.set_ylim(bottom=0)
    axes.yaxis.set_major_formatter(lambda value, _: _shown(value, defaults["unit"]))
    axes.xaxis.set_major_formatter(lambda value, _: f"{int(value // 60)}:{int(value % 60):02}")
    if names:
        axes.legend(
            *(some[:_LINES_MAX] for some in axes.get_legend_handles_labels()), loc="upper left", frameon=False,
            bbox_to_anchor=(-0.02, -0.13), ncols=4, fontsize=6, handlelength=1, columnspacing=1, borderpad=0,
        )  # fmt: skip


def _shown(value: float, unit: str) -> str:
    """Write a number as Grafana does in its unit."""
    match unit:
        case "s":
            for size, name in ((86_400, "d"), (3_600, "h"), (60, "min")):
                if abs(value) >= 2 * size:
                    return f"{value / size:.3g} {name}"
            return f"{value:.3g} s"
        case "percentunit":
            return f"{100 * value:.3g}%"
        case "bytes" | "binBps":
            names = ["B", "KiB", "MiB", "GiB"]
            step = min(3, int(math.log(abs(value), 1024))) if abs(value) >= 1 else 0
            return f"{value / 1024**step:.3g} {names[step]}{'/s' if unit == 'binBps' else ''}"
    thousands = f"{value / 1e3:.3g} K" if abs(value) >= 1e3 else f"{value:.3g}"  # noqa: PLR2004 - a thousand
    return f"{thousands}/s" if unit == "rowsps" else thousands


if __name__ == "__main__":
    sys.exit(main())
