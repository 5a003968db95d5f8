"""The lake that the engines are asked about: the real writer fills it, in both formats, on a disk and in a bucket."""

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tests import oracle
from tests.engines.events import WAVE, Produced, Row
from tests.servers.objects import ObjectServer
from tests.writing import Site, Writer
from writer.config import S3
from writer.tables.formats import OPENED

FORMATS = ("delta", "parquet")
_BUCKET: dict[str, Any] = {
    "type": "composite",
    "parts": [{"type": "event_time", "width": "1 h"}, {"type": "field", "field": "kind"}],
}


@dataclass(frozen=True)
class Lake:
    """A written lake: `root/<format>` on this disk, `bucket/<format>` on S3 where there is one, and its rows."""

    root: Path
    bucket: str | None
    rows: list[Row]

    def location(self, format_: str, *, s3: bool = False) -> str:
        """Where a table lies."""
        return f"{self.bucket if s3 else self.root}/{format_}"


def write(site: Site, topic: Callable[..., str], s3: ObjectServer | None = None) -> Lake:
    """Fill tables of both formats from one topic: three waves, three hours, and a wider schema for the last wave."""
    name, root = topic(2, prefix="engines"), site.root / "lake"
    bucket = None if s3 is None else s3.bucket()
    places = {format_: f"{root}/{format_}" for format_ in FORMATS}
    if bucket is not None and s3 is not None:
        places |= {f"{format_}-s3": f"{bucket}/{format_}" for format_ in FORMATS}
        site.overrides = {"s3": {"endpoint": s3.url}}
    for pipeline, location in places.items():
        table = {"location": location, "format": pipeline.partition("-")[0]}
        site.pipeline(pipeline, [name], table=table, bucket=_BUCKET, commit={"max_delay": "1 s"})
    produced, writer = Produced(), None
    for wave in range(3):
        numbers = range(wave * WAVE, (wave + 1) * WAVE)
        produced.send(site.bootstrap, site.registry_url, name, numbers, later=wave == 2)
        writer = writer or site.start()
        _carried(writer, site, name, places)
    assert writer is not None
    writer.stop()
    for format_ in FORMATS:
        oracle.check(root / format_, format_, site.ends(name))
    return Lake(root, bucket, produced.rows)


def _carried(writer: Writer, site: Site, topic: str, places: dict[str, str]) -> None:
    """Wait until all tables have what the topic has."""
    ends = sum(site.ends(topic).values())
    s3 = S3.model_validate(site.overrides.get("s3", {})).settings
    tables = [OPENED[place.rpartition("/")[2]](place, name, s3=s3) for name, place in places.items()]  # type: ignore[index]
    for table in tables:
        writer.until(lambda table=table: table.exists(), seconds=240)  # type: ignore[misc]
        writer.until(lambda table=table: sum(table.snapshot().parts().values()) == ends, seconds=240)  # type: ignore[misc]
