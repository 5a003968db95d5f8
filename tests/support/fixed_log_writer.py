"""A writer without Spark and Kafka that carries a fixed log to its end, and what must be true afterwards.

By itself, to be killed: python -m tests.support.fixed_log_writer (carry | look | judge) ROOT LOCATION FORMAT
[SETTINGS].
`look` and `judge` print a tally of the oracle's verdicts. SETTINGS: of the pipeline, as JSON.
"""

import json
import shutil
import sys
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass
from datetime import datetime
from itertools import count
from pathlib import Path
from typing import Any

from headrace.writer.audit.audit import audit
from tests.servers.objects import ObjectServer
from tests.support import oracle
from tests.support.local_driver import Driver, log
from tests.support.sample_records import NOW, event

PARTS = 2
STEP = 12
END = 36
INTERVAL = 4


def values(start: int, end: int) -> dict[int, bytes | None]:
    """Of ten records one is cut."""
    return {
        offset: b"\0\0\0\0\1cut" if offset % 10 == 5 else event(offset, event_time=NOW) for offset in range(start, end)
    }


def carry(root: Path, location: str, form: str, clock: Sequence[datetime] = (), **settings: Any) -> Driver:
    """Start a writer and let it carry what the table does not have. `clock`: what it shows at each batch."""
    table = {"location": location, **settings.pop("table", {})}
    driver = Driver(root, form, interval=INTERVAL, table=table, **settings)
    driver.start(PARTS)
    for batch, end in enumerate(range(STEP, END + 1, STEP)):
        batches = [log(values(end - STEP, end), partition) for partition in range(PARTS)]
        driver.carry(batches, dict.fromkeys(range(PARTS), end), now=clock[batch] if clock else NOW)
    return driver


@dataclass(frozen=True)
class TableLocation:
    """Where a table lies: below a directory, or below a prefix of a bucket. Readers and judges read files."""

    root: Path
    location: str
    server: ObjectServer | None = None

    def download(self) -> Path:
        """Return the table as files."""
        local = self.root / "lake" / "clicks"
        if self.server is not None:
            shutil.rmtree(local.parent, ignore_errors=True)
            self.server.download(self.location.rpartition("/")[0], local.parent)
        return local


def empty_locations(root: Path, server: ObjectServer | None) -> Iterator[TableLocation]:
    """Yield one place after the other, each empty."""
    for number in count():
        folder = root / str(number)
        local = str(folder / "lake" / "clicks")
        yield TableLocation(folder, local if server is None else f"{server.bucket()}/lake/clicks", server)


def judge(driver: Driver, location: Path) -> None:
    """Judge twice: from the files, and as `headrace audit` does."""
    oracle.check(location, "clicks", {("clicks", partition): END for partition in range(PARTS)})
    result = audit(driver.config, "clicks", since=None, deep=True)
    assert result.adds_up, "; ".join(f"{p.description} {p.part} {p.spans}" for p in result.problems)


def main(command: str, root: Path, location: str, form: str, settings: str = "{}") -> None:
    match command:
        case "carry":
            carry(root, location, form, **json.loads(settings))
        case "look":
            oracle.check_rows(Path(location), "clicks")
        case "judge":
            judge(carry(root, location, form), Path(location))
    print(json.dumps(asdict(oracle.tally)))


if __name__ == "__main__":
    main(sys.argv[1], Path(sys.argv[2]), *sys.argv[3:])
