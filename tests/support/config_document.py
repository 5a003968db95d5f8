"""The smallest configuration that is valid."""

from typing import Any


def smallest_config(**pipeline: Any) -> dict[str, Any]:
    clicks = {"topics": ["clicks"], "table": {"location": "/lake/clicks"}, "event_time": {"field": "at"}, **pipeline}
    return {
        "kafka": {"bootstrap_servers": "localhost:9092"},
        "registry": {"url": "http://localhost:8081"},
        "checkpoints": "/checkpoints",
        "pipelines": {"clicks": clicks},
    }
