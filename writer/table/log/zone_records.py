"""What a table's log has of the time zones by which rows got their buckets. Pure."""

import json
import zlib
from base64 import b64decode, b64encode
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from datetime import datetime
from typing import Any

from headrace.bucketers.zone_data import ZoneData, find_differences
from headrace.writer.core.text import instant, plural

_FIRST_YEAR = 1970
# Rules of later years change again before rows of them come.
_YEARS_AHEAD = 2


@dataclass(frozen=True)
class ZoneChange:
    """A zone of which the log has other data than this process."""

    zone: str
    # The version of the log; empty: it does not say.
    version_before: str
    # The version of this process; empty: it does not say.
    version: str
    # In which the clocks of both show different times.
    spans: tuple[tuple[datetime, datetime], ...]

    @property
    def phrase(self) -> str:
        """Say what changed, as a sentence without its end."""
        versions = f"{self.zone}: version {self.version_before or 'unknown'} became {self.version or 'unknown'}"
        if not self.spans:
            return f"{versions}, no label differs"
        start, end = self.spans[-1]
        return (
            f"{versions}, labels differ in {plural(len(self.spans), 'span')} of time, "
            f"the newest from {instant(start)} to {instant(end)}"
        )

    def to_dict(self) -> dict[str, Any]:
        """Describe it as JSON values."""
        spans = [[start.isoformat(), end.isoformat()] for start, end in self.spans]
        return {"zone": self.zone, "before": self.version_before, "version": self.version, "spans": spans}


def find_zone_changes(recorded: Mapping[str, ZoneData], data: Iterable[ZoneData], now: datetime) -> list[ZoneChange]:
    """Return the zones whose recorded version, or clock, is another: since 1970, and for two years from now on."""
    years = range(_FIRST_YEAR, now.year + _YEARS_AHEAD + 1)
    changes = []
    for zone_data in data:
        before = recorded.get(zone_data.zone)
        if before is None:
            continue
        spans = tuple(find_differences(before, zone_data, years))
        if spans or before.version != zone_data.version:
            changes.append(ZoneChange(zone_data.zone, before.version, zone_data.version, spans))
    return changes


def format_zone_data(data: Iterable[ZoneData]) -> str:
    """Return the property of a log for these zones."""
    zones = {}
    for zone_data in data:
        tzif = b64encode(zlib.compress(zone_data.tzif)).decode()
        zones[zone_data.zone] = {"version": zone_data.version, "tzif": tzif}
    return json.dumps(zones)


def parse_zone_data(text: str | None) -> dict[str, ZoneData]:
    """Return the zones of the property of a log; a log without it was written before its first start with a zone."""
    fields_by_zone: Mapping[str, Mapping[str, str]] = json.loads(text or "{}")
    zones = {}
    for zone, fields in fields_by_zone.items():
        tzif = zlib.decompress(b64decode(fields["tzif"]))
        zones[zone] = ZoneData(zone, fields["version"], tzif)
    return zones
