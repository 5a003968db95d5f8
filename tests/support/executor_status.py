"""Executors as the status shows them."""

EXECUTORS = {
    "master": "spark://host:7077",
    "refused": None,
    "age_seconds": 0.4,
    "requested": None,
    "asked_seconds": None,
    "registered": 2,
    "draining": [],
    "cores": 1,
    "cpus_per_task": 1,
    "short_seconds": None,
    "gc_share": None,
    "failed_tasks": 0,
    "lost": 0,
    "gone": 0,
    "decisions": [],
}
