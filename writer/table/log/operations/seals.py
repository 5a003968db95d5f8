"""Operations that close and seal buckets. They need no epoch."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any, ClassVar

from headrace.writer.core.units import microseconds
from headrace.writer.table.log.entries import changed_buckets
from headrace.writer.table.log.foreign_writes import NothingToClose, Resealed
from headrace.writer.table.log.operations.operation import CheckedLog, Operation
from headrace.writer.table.log.snapshot import PipelineSnapshot, closed_name


@dataclass(frozen=True)
class Closing(Operation):
    """One atomic step of `closed_until`. It adds no file."""

    kind: ClassVar[str] = "close"
    fault_point: ClassVar[str] = "close"

    id: str
    until: datetime
    # JSON values: reason, at.
    facts: Mapping[str, Any] = field(default_factory=dict)
    # The number of a table of the route; None: the pipeline's own.
    target: int | None = None

    def field_facts(self) -> dict[str, Any]:
        """Return the instant, and the table of a route that it is about."""
        facts: dict[str, Any] = {"until": self.until.isoformat()}
        return facts if self.target is None else {**facts, "target": self.target}

    def transactions(self, snapshot: PipelineSnapshot) -> dict[str, int]:
        """Return the instant up to which buckets are closed."""
        return {closed_name(snapshot.pipeline, self.target): microseconds(self.until)}

    def check(self, newest: PipelineSnapshot, previous: PipelineSnapshot, log: CheckedLog) -> None:
        """Raise NothingToClose where buckets are closed that far, or the table was rewound meanwhile."""
        closed_until = newest.closed_until if self.target is None else newest.closed_target(self.target)
        if closed_until is not None and closed_until >= self.until:
            raise NothingToClose(f"buckets of the table at {log.location} are closed until {closed_until} already")
        if newest.rewinds != previous.rewinds:
            # The rows that led to this instant may be gone: the caller looks again.
            raise NothingToClose(f"the table at {log.location} was rewound meanwhile")


@dataclass(frozen=True)
class Sealing(Operation):
    """One atomic entry that seals buckets: their manifests, as `Manifest.to_json` writes them. It adds no file."""

    kind: ClassVar[str] = "seal"
    fault_point: ClassVar[str] = "seal"

    id: str
    manifests: Sequence[Mapping[str, Any]]
    # JSON values: at.
    facts: Mapping[str, Any] = field(default_factory=dict)

    def field_facts(self) -> dict[str, Any]:
        """Return the manifests."""
        return {"manifests": list(self.manifests)}

    def check(self, newest: PipelineSnapshot, previous: PipelineSnapshot, log: CheckedLog) -> None:
        """Raise Resealed when a bucket changed since the previous version, or was sealed."""
        is_same_table = newest.state.metadata["id"] == previous.state.metadata["id"]
        entries = []
        if is_same_table:
            entries = [entry for entry in log.entries(previous.version) if entry[0] <= newest.version]
        if not is_same_table or len(entries) != newest.version - previous.version:
            raise Resealed(f"what became of {log.location} after version {previous.version} is unknown; look again")
        columns = newest.state.metadata["partitionColumns"]
        sealed_buckets = {tuple(manifest["bucket"]) for manifest in self.manifests}
        for version, actions in entries:
            if buckets := sealed_buckets & changed_buckets(columns, actions):
                raise Resealed(f"version {version} of {log.location} changed {min(buckets, key=str)}; look again")
