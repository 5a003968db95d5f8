"""Measures what the steps of a task cost for each record of a sample, in processor time of this machine."""

import math
import tempfile
import time
from datetime import datetime
from pathlib import Path

import pyarrow as pa

from headrace.writer.maintenance.local_pipeline import LocalPipeline
from headrace.writer.preflight.capacity.sizing import StepCost

# What the measured run takes about, beside the one that it is compared with.
MEASURED_S = 1.0
# A run has the sample at most so many times.
_COPIES_MAX = 50


def measure_steps(
    local_pipeline: LocalPipeline, records: pa.RecordBatch, now: datetime, measured_s: float = MEASURED_S
) -> StepCost:
    """Carry a sample through the steps, once and several times, and remove the files.

    The cost of a record is the difference by the further records: so what a task takes to begin and to write small
    files does not count. All threads of the process count. `measured_s`: how much of it, about.
    The sample has records.
    """
    # The first run builds decoders and loads libraries.
    _processor_s(local_pipeline, records, now, 1)
    single_s = _processor_s(local_pipeline, records, now, 1)
    further = max(1, min(_COPIES_MAX - 1, math.ceil(measured_s / max(single_s, 1e-3))))
    several_s = _processor_s(local_pipeline, records, now, 1 + further)
    count = (1 + further) * records.num_rows
    difference_s = several_s - single_s
    if difference_s <= 0:
        return StepCost(several_s / count, count)
    return StepCost(difference_s / (further * records.num_rows), count)


def _processor_s(local_pipeline: LocalPipeline, records: pa.RecordBatch, now: datetime, copies: int) -> float:
    with tempfile.TemporaryDirectory(prefix="headrace-measured-") as folder:
        began_s = time.process_time()
        local_pipeline.stage(records, now, Path(folder), copies=copies)
        return time.process_time() - began_s
