"""What the native reader gets of the configuration: how much is asked for at once."""

import base64
from collections.abc import Mapping
from datetime import timedelta
from uuid import UUID

from headrace.writer.config.sections.connections import Kafka
from headrace.writer.kafka_reader.reader import ReadLimits

# A shorter time would fail a slow broker.
_TIMEOUT_MIN = timedelta(seconds=30)


def limits(kafka: Kafka, rows: int, buffer_bytes: int = ReadLimits.buffer_bytes) -> ReadLimits:
    """Return how much is read at once. `rows`, `buffer_bytes`: of an Arrow batch.

    A range that does not move for twice the time of a request, at least a minute, has failed.
    """
    # Kafka takes 0, too, and answers with one record batch then.
    size = kafka.options.get("fetch.max.bytes")
    fetch = {} if size is None else {"fetch_bytes": max(1, int(size))}
    return ReadLimits(
        rows=rows,
        buffer_bytes=buffer_bytes,
        fetch_wait_ms=max(1, kafka.fetch_max_wait // timedelta(milliseconds=1)),
        retry_timeout_s=2 * max(kafka.request_timeout, _TIMEOUT_MIN).total_seconds(),
        **fetch,
    )


def topic_ids(written: Mapping[str, str]) -> dict[str, UUID]:
    """Read topic ids as Kafka's tools write them: base64 without padding."""
    return {topic: UUID(bytes=base64.urlsafe_b64decode(f"{text}==")) for topic, text in written.items()}
