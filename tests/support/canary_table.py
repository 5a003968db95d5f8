"""A table with canaries in its records, through all that happens to a table; each step of it may be the last one.

Without Spark and Kafka. Whoever comes after a process that died takes up the same steps: what is done is passed over.
"""

import os
import signal
import tempfile
from collections.abc import Mapping
from datetime import datetime, timedelta
from pathlib import Path
from typing import Any

from headrace.writer.cli.fix.delete_rows import run_deletion
from headrace.writer.core import logging
from headrace.writer.maintenance.compaction.compactor import here
from headrace.writer.maintenance.dead_letters.replay import DeadLetterReplay
from headrace.writer.maintenance.dead_letters.selection import Selection
from headrace.writer.maintenance.deletion.pipeline_deletion import DeletionRequest
from headrace.writer.maintenance.deletion.row_keys import where
from headrace.writer.maintenance.vacuum import find_unneeded, remove
from headrace.writer.privacy.keyring import read_keyring
from headrace.writer.sealing.rules import SealNow
from headrace.writer.sealing.sealer import Sealer
from tests.support import canaries
from tests.support.audits import describe_problems, run_audit
from tests.support.canaries import EVENT, KEY, ODD, STEM, WIDER
from tests.support.killed_process import SPAWNED
from tests.support.local_driver import Driver, log
from tests.support.private_table import keyring_at, start_driver
from tests.support.reprocess_lake import run_reprocess
from tests.support.sample_records import NOW, Schemas
from tests.support.small_files import compactor

HOUR = timedelta(hours=1)
_SCHEMAS: dict[int, Any] = {1: EVENT, 2: WIDER, 3: ODD, 5: KEY}
_KNOWN = Schemas(_SCHEMAS, [1, 2, 3], [5])
_LATER = Schemas({**_SCHEMAS, 9: EVENT}, [1, 2, 3], [5])
_TIERS = [{"within": "2 h", "to": "reopen"}, {"within": "7 d", "to": "late_table"}, {"to": "dead_letter"}]
_ON_TIME = 36
_ALL = 42
_DELETED = 12, 37  # of rows in the table, and of one in the late table


def open_driver(root: Path, form: str, policy: str) -> Driver:
    """Start the table's next writer. It holds so few bytes of rows that each batch spills."""
    table = {"raw": str(root / "lake" / "raw"), **({"name": "s.clicks"} if form == "iceberg" else {})}
    specs = {"Event": {"derive": {"ratio": "1 / share"}}}
    if policy != "drop":  # else there is no such column
        specs["Odd"] = {"derive": {"ratio": "CAST(text AS INT)"}}
    return start_driver(
        root,
        _KNOWN,
        canaries.privacy(policy),
        form=form,
        table=table,
        limits={"max_failed_ratio": 1},
        specs=specs,
        columns={"key": "avro", "headers": "_headers", "header_columns": {"attempt": {"header": "n", "type": "long"}}},
        seal={"late": _TIERS, "out_of_orderness": "0 s", "reopen_after": "0 s"},
        compact={"at_seal": True, "sort_by": ["share"], "dedupe": {"key": ["share"]}},
        budget=512,
    )


def run_life(root: Path, form: str, policy: str) -> Driver:
    """Lead a table through its life: commits, late rows, seals, compaction, replay, reprocess, deletion, vacuum."""
    driver = open_driver(root, form, policy)
    driver.carry([_records(0, 18), _records(18, _ON_TIME)], {0: _ON_TIME})
    sealer = Sealer("clicks", driver.config)
    buckets = sealer.follow()
    if buckets.closed_until is None:
        sealer.close(buckets, NOW, "watermark", NOW)
    driver.carry([_records(_ON_TIME, _ALL)], {0: _ALL})
    sealer = Sealer("clicks", driver.config)
    hours = [(f"{NOW - hours * HOUR:%Y-%m-%dT%H}",) for hours in range(1, 4)]
    assert not sealer.seal([SealNow(hour) for hour in hours], NOW)
    snapshot = driver.table.snapshot()
    compact = compactor(driver)
    for pieces in compact.plan(snapshot, hours, open_too=True).values():
        list(compact.carry_out(snapshot, pieces, here))
    DeadLetterReplay("clicks", driver.config, _LATER).run(Selection(schema_id=9), NOW)
    driver.schemas = _LATER
    run_reprocess(driver)
    texts = [f"share IN ({', '.join(map(str, _DELETED))})"]
    if policy in ("hash", "mixed"):
        texts.append(f"text = '{STEM}-text24'")
    for text in texts:
        run_deletion(driver.config, DeletionRequest("clicks", where(text), NOW), _LATER, write=True)
    remove(find_unneeded(driver.config, "clicks", None, datetime.now(NOW.tzinfo) + timedelta(days=9)))
    return driver


def _records(start: int, end: int) -> Any:
    """Return records at these offsets: rows of two schemas, and of each kind that goes wrong; each has canaries."""
    values = {offset: _value(offset) for offset in range(start, end)}
    keys = {offset: f"{STEM}-key".encode() if offset % 12 == 11 else canaries.key(offset) for offset in values}
    headers = {
        offset: {f"{STEM}-name": f"{STEM}-head".encode(), "n": f"{STEM}-n".encode() if offset % 12 == 10 else b"7"}
        for offset in values
    }
    return log(values, keys=keys, headers=headers)


def _value(offset: int) -> bytes:
    if offset >= _ON_TIME:
        return canaries.value(1 + offset % 2, NOW - (HOUR / 2, 25 * HOUR, 200 * HOUR)[offset % 3], offset)
    age = offset % 5 % 3 * HOUR + HOUR / 2  # rows of one schema and batch are of several hours
    valid = canaries.value(1, NOW - age, offset)
    broken: Mapping[int, bytes] = {
        1: canaries.value(2, NOW - age, offset),
        2: canaries.value(1, NOW - age, 0),  # a spec divides by it
        3: valid.replace(b"-text", b"\xfftext", 1),
        4: valid[:-1],
        5: valid + STEM.encode(),
        6: f"{STEM}-junk".encode(),
        7: b"\0\0\0\0\x09" + valid[5:],
        8: canaries.value(1, NOW - 400 * 24 * HOUR, offset),
        9: canaries.value(3, NOW - age, offset),
    }
    return broken.get(offset % 12, valid)


def run_life_in_process(root: Path, form: str, policy: str, point: str = "") -> bytes:
    """Lead the life on in a process that dies at a fault point; without one to its end. Returns what it said."""
    output_file = root / "said"
    process = SPAWNED.Process(target=_run_life_with_output, args=[root, form, policy, point, output_file])
    process.start()
    process.join()
    output = output_file.read_bytes()
    assert process.exitcode == (-signal.SIGKILL if point else 0), f"{point}: {process.exitcode} {output.decode()}"
    return output


def _run_life_with_output(root: Path, form: str, policy: str, point: str, output_file: Path) -> None:
    with output_file.open("wb") as out:
        for stream in (1, 2):
            os.dup2(out.fileno(), stream)
    os.environ["HEADRACE_FAULT"] = point
    scratch = root / "scratch"
    scratch.mkdir(exist_ok=True)
    tempfile.tempdir = str(scratch)
    logging.set_up()
    result = run_audit(run_life(root, form, policy))
    assert result.adds_up, describe_problems(result)


def keys(root: Path) -> list[bytes]:
    """Return the keys of the table's keyring."""
    keyring = read_keyring(keyring_at(root))
    return [*keyring.hash_keys.values(), *keyring.encryption_keys.values()]
