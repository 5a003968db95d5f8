"""Describes the machine of the measurement."""

import os
import platform
import subprocess
from dataclasses import dataclass
from importlib.metadata import version
from pathlib import Path

import psutil

from headrace.writer.clients import java_artifacts
from headrace.writer.core.units import show_size

_PACKAGES = ("headrace", "pyspark", "pyarrow", "datafusion", "deltalake", "confluent-kafka")


@dataclass(frozen=True)
class Machine:
    """Processor, memory and versions."""

    processor: str
    # The cores that this process may use.
    cores: int
    memory_bytes: int
    system: str
    python: str
    java: str
    packages: dict[str, str]

    def __str__(self) -> str:
        return f"{self.cores} cores ({self.processor}), {show_size(self.memory_bytes)}, {self.system}"

    @property
    def versions(self) -> str:
        """The versions that matter, in a line."""
        return f"Spark {self.packages['pyspark']}, Python {self.python}, Java {self.java}"


def inspect_machine() -> Machine:
    """Look at this machine. Raises JavaMissing."""
    return Machine(
        processor=_processor(),
        cores=len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1,
        memory_bytes=psutil.virtual_memory().total,
        system=f"{platform.system()} {platform.release()}",
        python=platform.python_version(),
        java=_java(),
        packages={name: version(name) for name in _PACKAGES},
    )


def _processor() -> str:
    info = Path("/proc/cpuinfo")
    lines = info.read_text(encoding="utf-8").splitlines() if info.exists() else []
    named = (line.partition(":")[2].strip() for line in lines if line.startswith("model name"))
    return next(named, platform.processor() or platform.machine())


def _java() -> str:
    process = subprocess.run(  # noqa: S603
        [java_artifacts.java(), "-version"], capture_output=True, text=True, check=True, timeout=60
    ).stderr
    return process.split('"')[1]
