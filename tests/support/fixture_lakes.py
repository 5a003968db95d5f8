"""Unpacks lakes of log format 1 that stay as they were made (tests/fixtures/make_lake.py), and reads what they say."""

import json
import tarfile
from collections.abc import Mapping
from dataclasses import dataclass
from hashlib import sha256
from pathlib import Path
from typing import Any

from headrace.writer.audit.audit import audit
from headrace.writer.config.loader import load
from headrace.writer.config.pipelines import Config
from headrace.writer.table.factory import main_table
from headrace.writer.table.gap_records import gap_records
from headrace.writer.table.log.entries import parse_entry
from headrace.writer.table.table import PipelineTable
from tests.support import oracle

FIXTURES = Path(__file__).parents[1] / "fixtures"
PIPELINE = "clicks"
# Keys of a configuration may change until the first release, while the log may not: then → now.
RENAMED_KEYS = {"failed_ratio_max": "max_failed_ratio"}


@dataclass(frozen=True)
class Facts:
    """What a lake's files, log and account say. All values are JSON's, so that they compare with those of a file."""

    kinds: list[str]  # of the entries of all its tables
    rows: Mapping[str, list[Any]]  # folder of a table → number of rows, and a hash of which they are
    version: int
    frontier: Mapping[str, int]
    columns: list[str]
    gaps: Mapping[str, int]  # state → gap records
    closed_until: str | None
    incarnations: Mapping[str, list[str]]
    totals: Mapping[str, int]  # outcome → records, by the account
    problems: list[str]  # of the account


def archives() -> list[Path]:
    """Return the fixture's archives. None is ever replaced."""
    return sorted(FIXTURES.glob("log-1*.tar.xz"))


def unpack(archive: Path, root: Path) -> Mapping[str, Facts]:
    """Unpack an archive and let its files name the folder they lie in by now. Returns the facts of each lake."""
    document = json.loads(archive.with_name(archive.name.replace(".tar.xz", ".json")).read_text())
    with tarfile.open(archive) as members:
        members.extractall(root, filter="data")
    for path in root.rglob("*"):
        if path.is_file() and document["root"].encode() in (content := path.read_bytes()):
            path.write_bytes(content.decode().replace(document["root"], str(root)).encode())
    for path in root.rglob("*.yaml"):
        text = path.read_text()
        for former, current in RENAMED_KEYS.items():
            text = text.replace(f"{former}:", f"{current}:")
        path.write_text(text)
    return {name: Facts(**facts) for name, facts in document["lakes"].items()}


def table_of(config: Config) -> PipelineTable:
    """Return the pipeline's table."""
    return main_table(PIPELINE, config)


def kinds_of(table: PipelineTable) -> list[str]:
    """Return the kinds of a table's entries."""
    return [parse_entry(version, actions).kind for version, actions in table.entries(-1)]


def lake_facts(root: Path) -> Facts:
    """Read what a lake says of itself by the code of today."""
    config = load(root / "headrace.yaml")
    table = table_of(config)
    snapshot = table.snapshot()
    account = audit(config, PIPELINE, since=None, deep=False)
    states = [gap_record.state for gap_record in gap_records(table, PIPELINE).values()]
    return Facts(
        kinds=sorted(kinds_below(root)),
        rows={folder.relative_to(root).as_posix(): identities(folder) for folder in tables_below(root)},
        version=snapshot.version,
        frontier={
            f"{part.topic}@{part.incarnation}/{part.partition}": offset for part, offset in snapshot.parts().items()
        },
        columns=[f"{field.name}: {field.type}" for field in snapshot.columns()],
        gaps={state: states.count(state) for state in sorted(set(states))},
        closed_until=None if snapshot.closed_until is None else snapshot.closed_until.isoformat(),
        incarnations=snapshot.incarnations(),
        totals={name: account.reconciliation.total(name) for name in TOTALS},
        problems=[str(problem) for problem in account.problems],
    )


def identities(table: Path) -> list[Any]:
    """Return how many rows a table has, and a hash of where in Kafka they are from."""
    rows = sorted(map(str, oracle.rows(table, "_topic, _incarnation, _partition, _offset")))
    return [len(rows), sha256("\n".join(rows).encode()).hexdigest()]


TOTALS = ("read", "rows", "late", "dead_letters", "quarantined", "tombstones", "filtered")


def tables_below(root: Path) -> list[Path]:
    """Return the folders of a lake's tables that have rows of records."""
    logs = [*root.rglob("_delta_log"), *(path.parent for path in root.rglob("_headrace/log"))]
    return sorted({path.parent for path in logs if list(path.parent.rglob("*.parquet"))})


def kinds_below(root: Path) -> set[str]:
    """Return the kinds of entries that all tables of a lake have, by their files alone."""
    entries = [*root.rglob("_delta_log/*.json"), *root.rglob("_headrace/log/*.json")]
    kinds = set()
    for path in entries:
        for line in path.read_text().splitlines():
            facts = json.loads(json.loads(line).get("commitInfo", {}).get("headrace", "{}"))
            kinds |= {facts["kind"]} if "kind" in facts else set()
    return kinds
