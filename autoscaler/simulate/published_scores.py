"""The scores that the docs show: played once, kept beside the code, and told apart from what the code is by now."""

import hashlib
import json
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

from autoscaler.decision.policy import DEFAULTS
from autoscaler.simulate.run import Score
from autoscaler.simulate.trace import Trace
from autoscaler.simulate.workloads import SHAPES

PATH = Path(__file__).parent / "published_scores.json"
_POINTS = {"points"}


def mark(trace: Trace) -> str:
    """Return what tells one trace from another, its arrivals included."""
    return hashlib.sha256(json.dumps(asdict(trace), sort_keys=True).encode()).hexdigest()[:16]


def policy() -> dict[str, Any]:
    """Return the defaults as JSON has them."""
    found: dict[str, Any] = json.loads(json.dumps(asdict(DEFAULTS)))
    return found


def read() -> dict[str, Any]:
    """Return the scores by trace, each with its mark and the policy that played it."""
    found: dict[str, Any] = json.loads(PATH.read_text(encoding="utf-8")) if PATH.exists() else {}
    return found


def keep(trace: Trace, scores: Sequence[Score]) -> None:
    """Write the scores of a trace down, beside those of the others."""
    rows = [{name: value for name, value in asdict(one).items() if name not in _POINTS} for one in scores]
    all_ = {**read(), trace.name: {"mark": mark(trace), "policy": policy(), "scores": rows}}
    found = {name: all_[name] for name in SHAPES if name in all_}
    PATH.write_text(json.dumps(found, indent=1) + "\n", encoding="utf-8")
