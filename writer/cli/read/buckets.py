"""`headrace buckets`: the buckets of a table and their states. From the lake alone."""

from collections import Counter
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Annotated, Any, Literal

import typer
from rich.console import Console
from rich.text import Text

import bucketers
from writer.config.loader import load
from writer.config.pipelines import Config
from writer.core.errors import ConfigError
from writer.core.files import BucketFile, BucketKey, by_bucket
from writer.core.offsets import TopicPartition
from writer.core.text import instant, iso, span
from writer.core.units import shifted, show_size
from writer.output.cli_options import AsJson, ConfigFile, OneTarget, Pipelines, time_of
from writer.output.tables import Column, TextTable, console, emit_whole, hanging, numbers, sentence
from writer.sealing.manifest import Manifest, bucket_path
from writer.sealing.rules import SealBlocked, SealLater, is_closed
from writer.sealing.sealer import Sealer
from writer.sealing.watermark import watermark

State = Literal["open", "closed", "sealed", "reopened"]
_READ_AT_ONCE = 16  # manifests
_STYLES = {"open": "cyan", "closed": "yellow", "sealed": "green", "reopened": "magenta"}


@dataclass(frozen=True)
class Bucket:
    """A bucket that has rows, as it is now."""

    key: BucketKey
    start: datetime | None
    end: datetime | None
    state: State
    rows: int | None  # None: another client wrote a file and does not say
    files: int
    bytes: int
    late: int  # rows that came after it was closed, since it began
    manifest: Manifest | None  # the newest
    why: str  # it is not sealed, or not again
    elsewhere: Mapping[str, int]  # rows that came late and did not join it, by policy (seal.late)


class BucketListing:
    """The buckets of one pipeline at one moment. Changes nothing."""

    def __init__(self, name: str, config: Config, now: datetime, target: str | None = None) -> None:
        """Look. Raises ConfigError where there is no table yet, CommitFailed, OSError."""
        self.sealer = Sealer(name, config, target)
        self.bucketer = self.sealer.bucketer
        if not self.sealer.table.exists():
            raise ConfigError(
                f"the table at {self.sealer.table.location} does not exist yet. Start the pipeline (`headrace run`)."
            )
        self.again(now)

    def again(self, now: datetime) -> None:
        """Look once more. Raises CommitFailed, OSError."""
        self.now, self.standing = now, self.sealer.follow(keep=False)
        numbers = {topic: len(ids) for topic, ids in self.standing.progress.incarnations().items()}
        parts = self.sealer.parts(self.standing, numbers, frozenset())
        self.watermark = watermark(parts, self.sealer.policy.out_of_orderness)

    def named(self, bucket: Bucket) -> str:
        """Return the bucket's name: the folders of its files."""
        return bucket_path(self.bucketer.columns, bucket.key)

    def buckets(self, since: datetime | None) -> list[Bucket]:
        """Return the buckets that end after an instant, the earliest first; those that go by no time come last."""
        files = by_bucket(self.sealer.table.bucket_files(self.standing.snapshot))
        spans = {key: bucketers.interval(self.bucketer, key) for key in files}
        chosen = [key for key in files if since is None or (span_ := spans[key]) is None or span_[1] > since]
        never = {b.bucket for b in self.standing.unsealed.buckets.values() if not b.sealed}
        sealed = [key for key in chosen if key not in never]
        with ThreadPoolExecutor(_READ_AT_ONCE) as threads:
            manifests = dict(zip(sealed, threads.map(self.sealer.manifests.newest, sealed), strict=True))
        found = [self._bucket(key, files[key], spans[key], manifests.get(key)) for key in chosen]
        last = datetime.max.replace(tzinfo=UTC)
        return sorted(found, key=lambda b: (b.start or last, tuple(map(str, b.key))))

    def why_not(self, key: BucketKey, version: int) -> tuple[str, str]:
        """Return the state of a bucket, and why it is not sealed in this version yet."""
        one = self.standing.unsealed.buckets.get(key)
        span_ = bucketers.interval(self.bucketer, key)
        closed = span_ is not None and is_closed(span_[1], self.standing.closed_until)
        if one is not None:
            state = "reopened" if one.sealed else "closed" if closed else "open"
            return state, self._why(key, span_[1] if span_ else None)
        newest = self.sealer.manifests.newest(key)
        if newest is not None:
            return "sealed", f"its newest version is {newest.version}, and nothing changed since; {version} is awaited"
        return (
            ("empty", "")
            if closed
            else ("open", f"no row of it came yet; {self._holding(span_[1] if span_ else None)}")
        )

    def _bucket(
        self, key: BucketKey, files: Sequence[BucketFile], span_: tuple[datetime, datetime] | None,
        manifest: Manifest | None,
    ) -> Bucket:  # fmt: skip
        one = self.standing.unsealed.buckets.get(key)
        rows = None if any(file.rows is None for file in files) else sum(file.rows or 0 for file in files)
        start, end = span_ or (None, None)
        state: State = "sealed" if one is None and manifest else "reopened" if manifest else (
            "closed" if end is not None and is_closed(end, self.standing.closed_until) else "open"
        )  # fmt: skip
        late = (manifest.late if manifest else 0) + (one.late if one else 0)
        why, size = "" if state in ("sealed", "open") else self._why(key, end), sum(file.bytes for file in files)
        elsewhere = self.standing.unsealed.late_elsewhere(key, manifest)
        return Bucket(key, start, end, state, rows, len(files), size, late, manifest, why, elsewhere)

    def _why(self, key: BucketKey, end: datetime | None) -> str:
        for state in self.sealer.due(self.standing, self.now):
            if state.bucket != key:
                continue
            match state:
                case SealBlocked(why=why):
                    return why
                case SealLater(due=due):
                    return f"rows came after it was sealed; it is sealed again after {instant(due)}"
                case _:
                    return "it is about to be sealed, by a running driver or `headrace seal`"
        return self._holding(end)

    def _holding(self, end: datetime | None) -> str:
        """Return what the closing of an open bucket waits for."""
        if end is None:
            return "it goes by no time, so nothing closes it"
        if not self.sealer.settings.seal.enabled:
            return "sealing is switched off (seal.enabled)"
        until = shifted(end, self.sealer.policy.allowed_lateness)
        mark = self.watermark
        if mark.instant is None:
            held = f": {_part(mark.held_by)} has no row yet" if mark.held_by else ""
            return f"it is closed when the watermark reaches {instant(until)}; there is none yet{held}"
        if mark.instant >= until:
            return "it is about to be closed, by a running driver or `headrace seal`"
        held = f", held back by {_part(mark.held_by)} unless it is idle" if mark.held_by else ""
        return (
            f"it is closed when the watermark reaches {instant(until)}; it stands at {instant(mark.instant)}{held}, "
            f"{span((until - mark.instant).total_seconds())} short"
        )


def _show(look: BucketListing, found: Sequence[Bucket], out: Console) -> None:
    right = numbers("rows", "files", "size", "late", "version")
    sheet = TextTable(out, [Column("bucket", width_max=60), Column("state"), *right, Column("sealed at")])
    if found:
        sheet.add([_row(look.named(bucket), bucket) for bucket in found])
    counts = Counter(bucket.state for bucket in found)
    sentence(out, ", ".join(f"{n:,} {state}" for state, n in sorted(counts.items())) or "no bucket has rows")
    for bucket in found:
        if bucket.why:
            hanging(out, f"{look.named(bucket)}: ", bucket.why, "yellow")
    mark, closed = look.watermark, look.standing.closed_until
    held = f", held back by {_part(mark.held_by)} unless it is idle" if mark.held_by else ""
    stands = "none yet" if mark.instant is None else instant(mark.instant)
    sentence(out, f"watermark: {stands}{held}; closed until: {'never yet' if closed is None else instant(closed)}")


def _row(name: str, bucket: Bucket) -> list[str | Text]:
    manifest = bucket.manifest
    return [
        name, Text(bucket.state, _STYLES[bucket.state]),
        "?" if bucket.rows is None else f"{bucket.rows:,}", f"{bucket.files:,}", show_size(bucket.bytes),
        f"{bucket.late:,}" if bucket.late else "", str(manifest.version) if manifest else "",
        instant(manifest.sealed_at) if manifest else "",
    ]  # fmt: skip


def _document(look: BucketListing, found: Sequence[Bucket]) -> dict[str, Any]:
    closed = look.standing.closed_until
    return {
        "watermark": mark(look), "closed_until": None if closed is None else iso(closed),
        "buckets": [
            {
                "bucket": list(b.key), "start": None if b.start is None else iso(b.start),
                "end": None if b.end is None else iso(b.end), "state": b.state, "rows": b.rows, "files": b.files,
                "bytes": b.bytes, "late": b.late, "version": b.manifest.version if b.manifest else None,
                "late_elsewhere": b.elsewhere,
                "sealed_at": iso(b.manifest.sealed_at) if b.manifest else None, "why": b.why or None,
            }
            for b in found
        ],
    }  # fmt: skip


def mark(look: BucketListing) -> dict[str, Any]:
    """Return the watermark as JSON values."""
    mark = look.watermark
    return {
        "instant": None if mark.instant is None else iso(mark.instant),
        "held_by": None if mark.held_by is None else _part(mark.held_by),
    }


def _part(part: TopicPartition | None) -> str:
    if part is None:
        return "no partition"
    again = f" of incarnation {part.incarnation}" if part.incarnation > 1 else ""
    return f"{part.topic}/{part.partition}{again}"


def buckets(
    config: ConfigFile,
    pipeline: Pipelines = None,
    target: OneTarget = None,
    state: Annotated[
        State | None, typer.Option("--state", help="Only buckets in this state.", show_default=False)
    ] = None,
    since: Annotated[
        str | None, typer.Option("--since", help="Only buckets that end after this time: 2026-11-20T05:00Z.")
    ] = None,
    as_json: AsJson = False,
) -> None:
    """Show the buckets that have rows: open, closed, sealed or reopened, with the watermark. Reads the lake only.

    Whether the partition that holds the watermark is idle, `headrace status` asks Kafka.

    Exit codes: 0 shown, 1 a table cannot be read, 2 configuration, or there is no table yet.
    """
    settings, now = load(config), datetime.now(UTC)
    names, after, out = settings.chosen(pipeline), time_of("--since", since), console()
    looks = {name: BucketListing(name, settings, now, target) for name in names}
    found = {name: [b for b in look.buckets(after) if state in (None, b.state)] for name, look in looks.items()}
    if as_json:
        emit_whole({"at": iso(now), "pipelines": {name: _document(look, found[name]) for name, look in looks.items()}})
        return
    for name, look in looks.items():
        if len(names) > 1:
            sentence(out, name, "bold")
        _show(look, found[name], out)
