"""Counts the requests of a process to object stores, by store, purpose, kind and outcome.

What Arrow's client sends to write a data file to S3 is reckoned from the file's size. Requests of delta-rs and Spark
are not counted, nor those of PyIceberg to S3. No name of a bucket or an object is kept.
"""

import math
import threading
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from headrace.writer.storage.bucket_locations import AZURE_SCHEMES

# What a request was for, by where its object lies.
PURPOSES = ("data", "log", "checkpoint", "lease", "other")
KINDS = ("get", "head", "put", "list", "copy", "delete", "create_upload", "upload_part", "complete_upload")
# By the answer: there is no such object; there is one already; 429 and 503; other errors; none came.
OUTCOMES = ("ok", "missing", "exists", "throttled", "failed", "unanswered")
# A data file below this size is put whole, else in parts of it.
PART_BYTES = 10 * 2**20
# Folders of a log, of Spark's checkpoint and of its copies.
_LOG = ("_delta_log", "_headrace/log")
# Manifests, their lists, and metadata files.
_ICEBERG_METADATA = (".avro", ".metadata.json")
# Data files in their places, and those of Parquet tables that wait for their commit.
_DATA = (".parquet", ".parquet.staged")
_CHECKPOINT = frozenset({"offsets", "commits", "sources", "copies"})


class Request(NamedTuple):
    """What a request is counted by. `store`: the scheme of the location."""

    store: str
    purpose: str
    kind: str
    outcome: str


@dataclass(frozen=True)
class RequestTally:
    """Requests, and the seconds for which they waited for the budget, by store."""

    requests: Mapping[Request, int] = field(default_factory=dict)
    waited_s: Mapping[str, float] = field(default_factory=dict)

    def plus(self, other: "RequestTally") -> "RequestTally":
        """Add another tally."""
        waited = Counter(self.waited_s)
        waited.update(other.waited_s)
        return RequestTally(Counter(self.requests) + Counter(other.requests), waited)

    def to_json(self) -> list[Any]:
        """Write it as JSON values."""
        return [[[*request, count] for request, count in self.requests.items()], dict(self.waited_s)]

    @classmethod
    def from_json(cls, raw: Sequence[Any]) -> "RequestTally":
        """Read what `to_json` wrote."""
        requests, waited = raw
        return cls({Request(*names): count for *names, count in requests}, waited)


class RequestCounts:
    """Counts of several threads."""

    def __init__(self) -> None:
        self._tally = RequestTally()
        self._lock = threading.Lock()

    def add(self, request: Request, count: int = 1) -> None:
        """Count requests."""
        self.add_tally(RequestTally({request: count}))

    def add_wait(self, store: str, seconds: float) -> None:
        """Count the seconds for which a request waited for its budget."""
        self.add_tally(RequestTally(waited_s={store: seconds}))

    def add_tally(self, tally: RequestTally) -> None:
        """Add what another process has counted."""
        with self._lock:
            self._tally = self._tally.plus(tally)

    def take(self) -> RequestTally:
        """Return what was counted since the last time, and count from zero."""
        with self._lock:
            tally = self._tally
            self._tally = RequestTally()
            return tally

    @property
    def tally(self) -> RequestTally:
        """What was counted so far."""
        with self._lock:
            return self._tally


# Of this process.
REQUEST_COUNTS = RequestCounts()


def purpose_of(path: str) -> str:
    """Return what an object is for, by its path or that of its folder.

    >>> purpose_of("s3://lake/clicks/_delta_log/00000000000000000007.json")
    'log'
    """
    if any(f"/{folder}/" in f"{path}/" for folder in _LOG):
        return "log"
    parts = path.split("/")
    if parts[-2:-1] == ["metadata"] and path.endswith(_ICEBERG_METADATA):
        return "log"
    if "_lease" in parts:
        return "lease"
    if parts[-1].endswith(_DATA):
        return "data"
    return "checkpoint" if _CHECKPOINT.intersection(parts) else "other"


def upload_requests(store: str, size: int) -> dict[str, int]:
    """Return the requests that write a data file to a store, by kind.

    `store`: the scheme of the location. `size`: in bytes. Azure takes parts (Put Block) without a beginning; their list
    (Put Block List) completes the blob.

    >>> upload_requests("az", 25 * 2**20)
    {'upload_part': 3, 'complete_upload': 1}
    """
    if size < PART_BYTES:
        return {"put": 1}
    beginning = {} if store in AZURE_SCHEMES else {"create_upload": 1}
    return {**beginning, "upload_part": math.ceil(size / PART_BYTES), "complete_upload": 1}


def list_requests(names: int, page_names_max: int) -> int:
    """Return the requests that list so many names, by the names that a page holds at most."""
    return max(1, math.ceil(names / page_names_max))
