"""Of writers that race each commit lands once, and it costs the same however many files the table has."""

import subprocess
import sys
import time
from collections import Counter
from contextlib import suppress
from datetime import UTC, datetime
from pathlib import Path
from statistics import median
from uuid import uuid4

import pytest
from deltalake.exceptions import CommitFailedError

from headrace.writer.core.files import StagedFile
from headrace.writer.core.offsets import TopicPartition
from headrace.writer.storage.locations import store_at
from tests.servers.objects import ObjectServer
from tests.support.table_formats import OPENED, delta_table
from tests.support.tables import COLUMNS, P0, batch, delta_client, rows

pytestmark = pytest.mark.slow
RACER = """
import sys
from datetime import UTC, datetime
from uuid import uuid4
from tests.support.tables import write_file
from headrace.writer.table.log.operations.rows import Batch
from headrace.writer.core.offsets import OffsetRange, TopicPartition
from tests.support.table_formats import OPENED

location, partition, epoch, form = sys.argv[1], int(sys.argv[2]), int(sys.argv[3]), sys.argv[4]
table, part, now = OPENED[form](location, "events"), TopicPartition("clicks", 1, partition), datetime.now(UTC)
print("ready", flush=True)
sys.stdin.readline()
for n in range(25):
    file = write_file(location, "x", 1, form)
    version = table.append(Batch(uuid4().hex, epoch, [OffsetRange(part, n, n + 1)], [file]), table.snapshot())
    print(version, flush=True)
    table.tidy()
"""


@pytest.mark.parametrize("form", OPENED)
def test_of_four_processes_that_race_every_commit_lands_once(tmp_path: Path, form: str) -> None:
    race(str(tmp_path / "lake"), form)


@pytest.mark.parametrize("form", OPENED)
def test_of_four_processes_that_race_on_s3_every_commit_lands_once(on_s3: ObjectServer, form: str) -> None:
    race(f"{on_s3.bucket()}/lake", form)


def race(location: str, form: str) -> None:
    """Commit from four processes at once, which tidy it. Another client changes a Delta table meanwhile."""
    table = OPENED[form](location, "events", checkpoint_interval=20)
    table.create(COLUMNS, ["hour"])
    parts = [TopicPartition("clicks", 1, partition) for partition in range(4)]
    epoch = table.begin(dict.fromkeys(parts, 0), {"clicks": ["uuid-1"]})
    begun = table.snapshot().version
    racers = [
        subprocess.Popen(
            [sys.executable, "-c", RACER, location, str(part.partition), str(epoch), form],
            stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
        )
        for part in parts
    ]  # fmt: skip
    try:
        for racer in racers:
            assert racer.stdout is not None
            assert racer.stdout.readline() == "ready\n"
        for racer in racers:
            assert racer.stdin is not None
            racer.stdin.write("go\n")
            racer.stdin.flush()
        foreign = 0
        while form == "delta" and racers[0].poll() is None and foreign < 10:
            with suppress(CommitFailedError):  # it lost fifteen times in a row, and has written nothing
                delta_client(location).alter.set_table_properties({"note": str(foreign)}, raise_if_not_exists=False)
                foreign += 1
            time.sleep(0.02)
        outputs = [racer.communicate(timeout=400) for racer in racers]
    finally:
        for racer in racers:
            racer.kill()
    assert [racer.returncode for racer in racers] == [0] * 4, outputs
    versions_written = sorted(int(line) for out, _ in outputs for line in out.split())
    commits = table.commits_since(begun)
    assert versions_written == [committed.version for committed in commits]
    assert set(Counter(committed.id for committed in commits).values()) == {1}
    assert len(commits) == 100
    last = table.snapshot()
    assert last.version == begun + 100 + foreign  # dense: no version without an entry of somebody's
    assert [last.frontier(part) for part in parts] == [25] * 4
    assert rows(table) == 100
    if form == "delta":
        assert delta_client(location).version() == last.version
    fresh = OPENED[form](location, "events").snapshot()  # from a checkpoint
    assert [fresh.frontier(part) for part in parts] == [25] * 4
    assert not [name for name in store_at(table.log_location).list() if name.startswith(".")]


def test_a_commit_costs_the_same_in_a_table_of_20_000_files(tmp_path: Path) -> None:
    now = datetime(2026, 11, 20, 5, tzinfo=UTC)

    def named(count: int) -> list[StagedFile]:
        return [
            StagedFile(f"hour=x/{uuid4().hex}.parquet", ("x",), 1, 1, '{"numRecords":1}', now, now, {})
            for _ in range(count)
        ]

    tables = []
    for name, files in (("empty", 0), ("large", 20_000)):
        table = delta_table(str(tmp_path / name), "events")
        table.create(COLUMNS, ["hour"])
        epoch = table.begin({P0: 0}, {"clicks": ["uuid-1"]})
        table.append(batch(epoch, 0, 1, *named(files)), table.snapshot())
        delta_client(table.location).create_checkpoint()
        tables.append((delta_table(str(tmp_path / name), "events"), epoch))  # as the next start opens it
        tables[-1][0].snapshot()

    def seconds() -> list[float]:
        spent: list[list[float]] = [[], []]
        for _ in range(15):  # in turn, so that a busy moment of the machine falls on both
            for (table, epoch), times in zip(tables, spent, strict=True):
                began = time.perf_counter()
                snapshot = table.snapshot()
                at = snapshot.frontier(P0) or 0
                table.append(batch(epoch, at, at + 1, *named(4)), snapshot)
                times.append(time.perf_counter() - began)
        return [median(times) for times in spent]

    assert any(large < 3 * empty for empty, large in (seconds() for _ in range(3)))
