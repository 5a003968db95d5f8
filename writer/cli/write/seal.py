"""`headrace seal`: closes and seals buckets now, or shows what would be sealed."""

from dataclasses import dataclass, replace
from datetime import UTC, datetime, timedelta
from typing import Annotated, Any

import typer
from rich.console import Console

from writer.batch.staging.bucket_folders import hive_value
from writer.clients.kafka import BrokerUnreachable, Cluster
from writer.config.pipelines import Config
from writer.core.errors import ConfigError, HeadraceError
from writer.core.files import BucketKey
from writer.core.text import instant, plural
from writer.driver.sealing.steps import Closer, beside_seals, numbers_now
from writer.maintenance.compaction import here
from writer.output.cli_options import AsJson, ConfigFile, OnePipeline, OneTarget, load_pipeline, time_of
from writer.output.confirmation import DryRun, Yes, confirm
from writer.output.tables import Column, TextTable, console, emit_whole, hanging, numbers, sentence
from writer.sealing.idleness import Listener
from writer.sealing.manifest import Manifest, Reason, bucket_path
from writer.sealing.rules import Close, SealBlocked, SealLater, SealNow, State
from writer.sealing.sealer import BucketSnapshot, Sealer

_COMMAND: Reason = "command"
_KAFKA_WITHIN = timedelta(seconds=5)  # a person waits for the answer


def seal(
    config: ConfigFile,
    bucket: Annotated[
        str | None, typer.Argument(help="Only this bucket: 2026-11-20T05, or hour=2026-11-20T05/country=DE.")
    ] = None,
    pipeline: OnePipeline = None,
    target: OneTarget = None,
    until: Annotated[
        str | None, typer.Option("--until", help="Close every bucket that ends by this time, and seal them.")
    ] = None,
    with_gap: Annotated[
        bool, typer.Option("--with-gap", help="Also those whose records may lie in a gap: Kafka lost them.")
    ] = False,
    yes: Yes = False,
    dry_run: DryRun = False,
    as_json: AsJson = False,
) -> None:
    """Seal buckets: say in a manifest what each holds, once no more rows are expected on time (docs/BUCKETS.md).

    Without BUCKET or --until, what is due by watermark or clock, as the driver does by itself. With one of them, on
    your word that the rows are there: what still comes is late. Without Spark; may run beside the writer.

    Exit codes: 0 sealed or shown, or nothing to do, 1 a bucket could not be sealed, or Kafka does not answer, 2 it
    cannot be so.
    """
    settings, name = load_pipeline(config, pipeline)
    if bucket is not None and until is not None:
        raise ConfigError("give BUCKET or --until, not both")
    end, now = time_of("--until", until), datetime.now(UTC)

    def work(*, write: bool) -> bool:
        wanted = SealRequest(bucket, end, with_gap=with_gap, dry_run=not write)
        found = seal_table(name, settings, wanted, now, target)
        if as_json:
            emit_whole(found.to_json())
        else:
            _show(found, console())
        if write and (found.blocked or found.unanswered):
            raise typer.Exit(1)
        return bool(found.sealed) or found.closes

    confirm(work, yes=yes, dry_run=dry_run, as_json=as_json)


@dataclass(frozen=True)
class SealRequest:
    """What a person asks for."""

    bucket: str | None
    until: datetime | None
    with_gap: bool
    dry_run: bool


@dataclass(frozen=True)
class SealResult:
    """What became of it. `sealed` are manifests as JSON values; in a dry run they are only drawn up."""

    closed_until: datetime | None
    sealed: tuple[dict[str, Any], ...]
    blocked: tuple[tuple[str, str], ...]
    notes: tuple[str, ...]
    dry_run: bool
    unanswered: bool = False  # Kafka did not say what is due
    closes: bool = False  # in a dry run: buckets that are open would be closed

    def to_json(self) -> dict[str, Any]:
        """Write it as JSON values."""
        return {
            "dry_run": self.dry_run, "closed_until": self.closed_until and self.closed_until.isoformat(),
            "sealed": list(self.sealed), "blocked": [{"bucket": b, "reason": why} for b, why in self.blocked],
            "notes": list(self.notes),
        }  # fmt: skip


def seal_table(name: str, config: Config, wanted: SealRequest, now: datetime, target: str | None = None) -> SealResult:
    """Close and seal what is asked for. Raises ConfigError, HeadraceError when there is no table, CommitFailed."""
    sealer = Sealer(name, config, target)
    steps = beside_seals(sealer, config.at_target(name, target), here)
    sealer.table.check_exists()
    standing = sealer.follow(keep=not wanted.dry_run)
    chosen = None if wanted.bucket is None else _chosen(sealer, wanted.bucket)
    if chosen is not None and chosen not in standing.unsealed.buckets:
        return _nothing(sealer, standing, chosen, dry_run=wanted.dry_run)
    notes: list[str] = []
    unanswered = False
    until, reason = wanted.until, _COMMAND
    if chosen is not None:
        until = standing.unsealed.buckets[chosen].end
    elif until is None:
        try:
            until, reason = _due(sealer, config, now, keep=not wanted.dry_run)
        except BrokerUnreachable as error:  # what is closed already can be sealed all the same
            notes, unanswered = [f"nothing was closed: {error}"], True
    if until is not None and until > now:
        raise ConfigError(
            f"{instant(until)} has not come yet: every row until then would be late. Choose an earlier time"
        )
    if until is not None and wanted.dry_run:
        standing = replace(standing, closing=until)
    elif until is not None:
        sealer.close(standing, until, reason, now)
        standing = sealer.follow()
    closes = standing.closed_until != standing.snapshot.closed_until
    if "late rows" in steps and not wanted.dry_run:
        steps["late rows"](sealer, now)
    return replace(_sealed(sealer, standing, wanted, chosen, notes, now), unanswered=unanswered, closes=closes)


def _due(sealer: Sealer, config: Config, now: datetime, *, keep: bool) -> tuple[datetime | None, Reason]:
    """Return how far watermark or clock close by now, and which. Raises BrokerUnreachable."""
    cluster = Cluster(config.kafka.address, min(config.kafka.request_timeout, _KAFKA_WITHIN))
    numbers = numbers_now(sealer, cluster)
    _, decision = Closer(Listener(cluster, list(numbers)), lambda: numbers).decide(sealer, now, keep=keep)
    return (decision.until, decision.reason) if isinstance(decision, Close) else (None, _COMMAND)


def _sealed(
    sealer: Sealer,
    standing: BucketSnapshot,
    wanted: SealRequest,
    chosen: BucketKey | None,
    notes: list[str],
    now: datetime,
) -> SealResult:
    states = [s for s in sealer.due(standing, now) if chosen in (None, s.bucket)]
    if chosen is not None and not states:  # it does not go by time: nothing closes it but this word
        states = [SealNow(chosen)]
    mine: list[State] = []
    left: list[State] = []
    for state in states:
        forced = (isinstance(state, SealBlocked) and state.by_gap and wanted.with_gap) or (
            isinstance(state, SealLater) and chosen is not None
        )
        (mine if forced or isinstance(state, SealNow) else left).append(state)
    ready = [SealNow(state.bucket) for state in mine]
    if wanted.dry_run:
        manifests, unsound = sealer.draw(standing, ready, now)
    else:
        sealer.seal(ready, now)
        manifests = sealer.sealed
        unsound = [
            s for s in sealer.due(sealer.follow(), now) if isinstance(s, SealBlocked) and SealNow(s.bucket) in ready
        ]
    notes += [f"{_name(sealer, s.bucket)} changed; it is sealed again from {instant(s.due)} on" for s in left
              if isinstance(s, SealLater)]  # fmt: skip
    blocked = [*(s for s in left if isinstance(s, SealBlocked)), *unsound]
    return SealResult(
        standing.closed_until, tuple(m.to_json() for m in manifests),
        tuple((_name(sealer, s.bucket), s.why) for s in blocked), tuple(notes), wanted.dry_run,
    )  # fmt: skip


def _nothing(sealer: Sealer, standing: BucketSnapshot, bucket: BucketKey, *, dry_run: bool) -> SealResult:
    """Return why a bucket is not to be sealed. Raises HeadraceError when there is none."""
    manifest = sealer.manifests.newest(bucket)
    if manifest is None:
        raise HeadraceError(f"{sealer.table.location} has no rows in {_name(sealer, bucket)}: there is nothing to seal")
    note = f"{manifest.name} is sealed: manifest {manifest.version} of {instant(manifest.sealed_at)} holds"
    return SealResult(standing.closed_until, (), (), (note,), dry_run)


def _chosen(sealer: Sealer, text: str) -> BucketKey:
    """Read a bucket as people write it. Raises ConfigError."""
    pieces = text.strip("/").split("/")
    names = [piece.partition("=")[0] if "=" in piece else None for piece in pieces]
    fits = len(pieces) == len(sealer.columns) and all(
        n in (None, c) for n, c in zip(names, sealer.columns, strict=True)
    )
    if not fits:
        form = "/".join(f"{column}=…" for column in sealer.columns)
        raise ConfigError(f"{text!r} is no bucket of pipeline {sealer.pipeline!r}; write it as {form}")
    return tuple(hive_value(piece if name else f"={piece}") for piece, name in zip(pieces, names, strict=True))


def _name(sealer: Sealer, bucket: BucketKey) -> str:
    return bucket_path(sealer.columns, bucket)


def _show(found: SealResult, out: Console) -> None:
    until = "nothing is closed yet" if found.closed_until is None else f"closed until {instant(found.closed_until)}"
    word = "would be sealed" if found.dry_run else "sealed"
    sentence(out, f"{until}; {plural(len(found.sealed), 'bucket')} {word}")
    sheet = TextTable(out, [Column("bucket"), *numbers("version", "rows", "files", "late"), Column("why")])
    sealed = [Manifest.from_json(raw) for raw in found.sealed]
    if sealed:
        sheet.add([
            [m.name, str(m.version), f"{m.rows:,}", f"{m.files:,}", f"{m.late:,}",
             m.reason + (", with a gap" if m.with_gap else "")]
            for m in sealed
        ])  # fmt: skip
    for bucket, why in found.blocked:
        hanging(out, f"{bucket} is not sealed: ", why, "yellow")
    for note in found.notes:
        sentence(out, note)
