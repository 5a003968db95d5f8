"""Kafka headers of a tracing library: `traceparent` and `tracestate` as W3C's Trace Context has them."""

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from headrace.bench.data import encode
from headrace.bench.data.draw import Draw

Headers = list[tuple[str, bytes]]


def trace_headers(draw: Draw) -> list[Headers]:
    """Return the two headers of each event, of 55 and 56 bytes beside their names: each event has a trace of its own.

    Example: `00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01` and
    `dd=s:1;p:00f067aa0ba902b7;t.dm:-1;t.tid:4bf92f3577b34da6`.
    """
    upper, lower, span = (encode.hexadecimal(draw.bits(f"trace/{part}")) for part in ("upper", "lower", "span"))
    parents = _join(draw, b"00-", upper, lower, b"-", span, b"-01")
    states = _join(draw, b"dd=s:1;p:", span, b";t.dm:-1;t.tid:", upper)
    return [
        [("traceparent", parent), ("tracestate", state)]
        for parent, state in zip(parents.to_pylist(), states.to_pylist(), strict=True)
    ]


def _join(draw: Draw, *parts: bytes | encode.Bytes) -> pa.BinaryArray:
    rows: list[npt.NDArray[np.uint8]] = []
    for part in parts:
        if isinstance(part, bytes):
            constant = np.frombuffer(part, np.uint8)
            rows.append(np.broadcast_to(constant, (len(draw), len(constant))))
        else:
            rows.append(part)
    return encode.fixed_width_array(np.hstack(rows))
