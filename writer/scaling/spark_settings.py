"""Spark settings that scaling needs, and the number of ranges of a batch. Pure."""

import math
import os
import re
from collections.abc import Mapping

from headrace.writer.config.pipelines import Config
from headrace.writer.config.sections.connections import Autoscaler
from headrace.writer.config.sections.resource_limits import Scheduling

# Tasks share ranges out by number; with several for each they get equal parts.
_RANGES_PER_SLOT = 3
_ELASTIC = "spark://host:7077 (standalone), k8s://… (Kubernetes) or, on one machine, local-cluster[3,2,2048]"


def in_one_process(master: str) -> bool:
    """Return whether tasks run in the driver's own process: there are no executors."""
    return master.startswith("local") and not master.startswith("local-cluster")


def refusal(master: str, conf: Mapping[str, str]) -> str | None:
    """Return why executors cannot be scaled, and what to use instead; None where they can."""
    if in_one_process(master):
        return (
            f"spark.master is {master}: tasks run in the driver's own process, and there are no executors to scale. "
            f"Set spark.master to {_ELASTIC}."
        )
    if conf.get("spark.dynamicAllocation.enabled", "false").lower() == "true":
        return (
            "spark.dynamicAllocation.enabled is true: Spark would take back what is asked for, and a trigger under a "
            "minute keeps it at its maximum. Set it to false in spark.conf."
        )
    if conf.get("spark.decommission.enabled", "true").lower() != "true":
        return (
            "spark.decommission.enabled is false: an executor that is told to go would stay, without work. Take it "
            "out of spark.conf."
        )
    return None


def settings(master: str, section: Autoscaler) -> dict[str, str]:
    """Return Spark's settings for executors that can be added and removed."""
    if in_one_process(master):
        return {}
    return {
        "spark.dynamicAllocation.enabled": "false",
        # Without it, a decommissioned executor stays and does nothing.
        "spark.decommission.enabled": "true",
        # Nothing is cached, and nothing is shuffled.
        "spark.storage.decommission.enabled": "false",
        "spark.executor.decommission.forceKillTimeout": f"{int(section.drain_within.total_seconds())}s",
        # A report that waits on an executor would go with it.
        "spark.task.maxDirectResultSize": "16m",
        # An application of months does not add up its failures.
        "spark.executor.failuresValidityInterval": "1h",
    }


def slots_most(config: Config) -> int | None:
    """Return how many tasks may ever run at once; None where it stays as it is at the start."""
    conf = config.spark.conf
    if in_one_process(config.spark.master):
        return None
    cpus_per_task = int(conf.get("spark.task.cpus", "1"))
    slots_per_executor = max(1, int(conf.get("spark.executor.cores", "1")) // cpus_per_task)
    slots = config.autoscaler.max_executors * slots_per_executor
    if "spark.cores.max" in conf:
        slots = min(slots, int(conf["spark.cores.max"]) // cpus_per_task)
    return max(1, slots)


def slots_now_at_most(config: Config) -> int | None:
    """Return how many tasks may run at once, also in the driver's own process; None where nobody says."""
    local = re.match(r"local(?:\[(\*|\d+))?", config.spark.master)
    if not in_one_process(config.spark.master) or local is None:
        return slots_most(config)
    threads = local[1] or "1"
    cores = len(os.sched_getaffinity(0)) if threads == "*" else int(threads)
    return cores // int(config.spark.conf.get("spark.task.cpus", "1"))


def pools(shares: Mapping[str, Scheduling]) -> str:
    """Write the pools of Spark's fair scheduler, as its allocation file has them. `shares`: by pipeline."""
    lines = (
        f'  <pool name="{name}"><schedulingMode>FIFO</schedulingMode>'
        f"<weight>{share.weight}</weight><minShare>{share.min_share}</minShare></pool>\n"
        for name, share in shares.items()
    )
    return f'<?xml version="1.0"?>\n<allocations>\n{"".join(lines)}</allocations>\n'


def offsets_per_range(config: Config, offsets_max: int) -> int | None:
    """Return how many offsets Spark reads in one piece, so that a full batch has work for every slot there may be.

    Pieces go by offsets, not by a number of them: a small batch is not cut. None: as at the start.
    """
    slots = slots_most(config)
    if slots is None:
        return None
    return max(1, math.ceil(offsets_max / (slots * _RANGES_PER_SLOT)))
