"""How the buckets of a pipeline are: what its sealing finds, and the surface shows. Pure."""

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime

from writer.rooms.columnar import BucketKey
from writer.seals.manifest import Manifest, bucket_path
from writer.seals.seal import Blocked, State, Unsealed
from writer.seals.watermark import Watermark


@dataclass(frozen=True)
class Lives:
    """The buckets of a table at one moment. Those that are sealed and as their manifest says are not counted here."""

    at: datetime
    watermark: Watermark
    closed_until: datetime | None
    open: int
    closed: int  # and not sealed: about to be, or blocked
    reopened: int  # sealed, and changed since
    next: tuple[str, datetime] | None = None  # the open bucket that ends first, and when
    blocked: tuple[tuple[str, str], ...] = ()  # bucket, and why it is not sealed
    late: int = 0  # rows in buckets that are not sealed, that came after they were closed
    sealed: int = 0  # manifests of this process
    resealed: int = 0  # of these, of buckets that had one
    last: Manifest | None = None
    trouble: tuple[tuple[str, str], ...] = ()  # step that fails, and why


def lives(
    columns: Sequence[str], buckets: Sequence[Unsealed], states: Sequence[State], sealed: Sequence[Manifest],
    mark: Watermark, closed_until: datetime | None, trouble: Sequence[tuple[str, str]], at: datetime,
) -> Lives:  # fmt: skip
    """Count what is where. `states`: of the closed buckets among those that are not sealed."""

    def name(bucket: BucketKey) -> str:
        return bucket_path(columns, bucket)

    closed = {state.bucket for state in states}
    reopened = sum(b.sealed > 0 for b in buckets if b.bucket in closed)
    open_ = [b for b in buckets if b.bucket not in closed]
    ends = sorted((b.end, name(b.bucket)) for b in open_ if b.end is not None)
    return Lives(
        at=at, watermark=mark, closed_until=closed_until, open=len(open_),
        closed=len(closed) - reopened, reopened=reopened,
        next=(ends[0][1], ends[0][0]) if ends else None,
        blocked=tuple((name(state.bucket), state.why) for state in states if isinstance(state, Blocked)),
        late=sum(b.late for b in buckets), sealed=len(sealed), resealed=sum(m.version > 1 for m in sealed),
        last=sealed[-1] if sealed else None, trouble=tuple(trouble),
    )  # fmt: skip
