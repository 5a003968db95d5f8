"""The figures as JSON: settings, medians, ratios, and every run as it was measured."""

from collections.abc import Sequence
from dataclasses import asdict
from typing import Any

from bench.figures import Run, contenders_of, costs, ratios, summary
from bench.job import CORES
from bench.machine import Machine
from bench.rounds import Setting


def as_json(runs: Sequence[Run], setting: Setting, machine: Machine) -> dict[str, Any]:
    """Return the whole result as JSON values."""
    return {
        "setting": {
            "data": setting.data.name,
            "events": setting.events,
            "event_bytes": runs[0].avro_bytes / runs[0].events,
            "repeats": setting.repeats,
            "spark_cores": CORES,
            **({} if setting.partitions else {"batch_events": setting.batch_events, "warm_from": setting.warm_from}),
        },
        "machine": asdict(machine),
        **({"topics": [asdict(cost) for cost in costs(runs)]} if setting.partitions else _race(runs)),
        "runs": [asdict(run) for run in runs],
    }


def _race(runs: Sequence[Run]) -> dict[str, Any]:
    return {
        "contenders": {name: asdict(summary(runs, name)) for name in contenders_of(runs)},
        "warm_events_per_cpu_s_ratios": {
            f"{contenders_of(runs)[0]} / {other}": asdict(spread) for other, spread in ratios(runs).items()
        },
    }
