"""The status of a fleet of pipelines."""

from dataclasses import asdict
from datetime import UTC, datetime
from typing import Any

from headrace.writer.output.health import health
from headrace.writer.status.document import document
from headrace.writer.status.progress import Progress

NOW = datetime(2026, 11, 20, 12, tzinfo=UTC)


def pipeline(name: str = "clicks", **changes: Any) -> dict[str, Any]:
    """A pipeline as `/status` describes it: running and well, but for what a test changes."""
    progress = Progress(name)
    progress.set_running()
    status = document([progress.view()], NOW)["pipelines"][name]
    lag = {**status["lag"], "offsets": 0, "seconds": 0.0, **changes.pop("lag", {})}
    changed_status = {**status, "commit_age_seconds": 12.0, "lag": lag, **changes}
    return {**changed_status, "health": asdict(health(changed_status))}


def late_target(name: str, seconds: float | None, rows: int = 0) -> dict[str, Any]:
    why = None if seconds is None else "storage at s3://lake refuses"
    target = {"location": f"s3://lake/app/{name}", "rows": rows, "bytes": 10 * rows, "files": rows // 100}
    waits = {
        "applied_version": 41,
        "waiting_entries": 0 if why is None else 7,
        "held_bytes": 0 if why is None else 2**30,
    }
    return {"name": name, **target, **waits, "behind_seconds": seconds, "behind": why}


def sixty_pipelines() -> dict[str, Any]:
    """60 pipelines, one of them with 500 tables."""
    pipelines = {f"orders-{n:02}": pipeline(lag={"offsets": n * 1_000, "seconds": float(n)}) for n in range(57)}
    pipelines["failing"] = pipeline(
        state="failed", error="the topic 'payments' does not exist on broker:9092: it was deleted"
    )
    pipelines["paused"] = pipeline(state="paused", pause={"at": "x"})
    tables = [late_target(f"com.shop.Event{n}", 1_000.0 - n if n < 9 else None, rows=n) for n in range(500)]
    pipelines["mixed"] = pipeline(targets=tables, max_held_bytes=10 * 2**30)
    return {"pipelines": pipelines}
