"""Every engine gives the answers that follow from the events that were produced, or a limit says that it cannot."""

from collections.abc import Iterator
from dataclasses import dataclass
from decimal import Decimal
from itertools import product
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import pytest
from confluent_kafka.admin import AdminClient, NewTopic
from deltalake import DeltaTable

from tests.conftest import Servers
from tests.engines import engines, lake
from tests.engines.engines import Engine
from tests.engines.lake import FORMATS, REWRITTEN, Lake
from tests.engines.limits import LIMITS
from tests.engines.questions import BOUNDED, MANY_SCANS, QUESTIONS, Answer, boundary, same
from tests.servers.druid import IngestFailed
from tests.servers.objects import ObjectServer
from tests.support.writer_process import Site

pytestmark = [pytest.mark.slow, pytest.mark.engines, pytest.mark.timeout(1200)]


@pytest.fixture(scope="session")
def written(stack: Servers, s3: ObjectServer, lakes: Path) -> Lake:
    admin = AdminClient({"bootstrap.servers": stack.broker.bootstrap})
    admin.create_topics([NewTopic("engines", 2, 1)])["engines"].result(timeout=30)
    site = Site(lakes / "asked", stack.broker.bootstrap, stack.registry.url)
    site.root.mkdir()
    return lake.write(site, "engines", s3)


@dataclass(frozen=True)
class Running:
    """An engine at work, and the server behind it."""

    name: str
    engine: Engine
    server: Any


ENGINES = ("duckdb", "spark", "trino", "presto", "druid")
NOT_TRIED = {  # as docs/ENGINES.md says
    ("duckdb", "delta", "s3"), ("duckdb", "parquet", "s3"), ("spark", "delta", "s3"), ("spark", "parquet", "s3"),
    ("presto", "parquet", "s3"), ("druid", "delta", "s3"), ("druid", "parquet", "s3"),
}  # fmt: skip
_PLACES = [*product(FORMATS, ["local", "s3"]), (REWRITTEN, "local")]
TRIED = [(engine, *location) for engine in ENGINES for location in _PLACES if (engine, *location) not in NOT_TRIED]


def by(*engines: str) -> pytest.MarkDecorator:
    """Run a test on these engines."""
    return pytest.mark.parametrize("running", engines, indirect=True)


@pytest.fixture(scope="session")
def pointed() -> Iterator[dict[str, Running]]:
    """The engines that know the tables by now. A fixture with parameters would be made anew, which they are not."""
    yield (known := {})
    for running in known.values():
        running.engine.close()


@pytest.fixture
def running(
    request: pytest.FixtureRequest, pointed: dict[str, Running], written: Lake, s3: ObjectServer, lakes: Path
) -> Running:
    """An engine that knows the tables; its server is started by the first test that asks for it."""
    name = request.param
    if name not in pointed:
        server = None if name == "duckdb" else request.getfixturevalue(name)
        match name:
            case "duckdb":
                engine = engines.duckdb_engine(written)
            case "spark":
                engine = engines.spark_engine(server, written)
            case "trino":
                engine = engines.trino_engine(server, lakes, written, s3)
            case "presto":
                engine = engines.presto_engine(server, written, s3)
            case _:
                engine = engines.druid_engine(server, written)
        pointed[name] = Running(name, engine, server)
    return pointed[name]


def asked(running: Running, format_: str, place: str, rows: list[Any]) -> dict[str, tuple[Any, Answer]]:
    """What an engine answers to each question, or how it fails, beside what is right."""
    d = running.engine.tables[format_, place]
    wanted = {question.name: (question.sql(d), list(question.answer(rows, d))) for question in QUESTIONS}
    if place == "s3":  # where the same files lie, and each scan takes hundreds of requests
        del wanted[MANY_SCANS]
    else:
        wanted |= {f"bounds of {column}": boundary(column, rows, d) for column in BOUNDED}
    answers: dict[str, tuple[Any, Answer]] = {}
    for name, (sql, expected) in wanted.items():
        try:
            answers[name] = running.engine.ask(sql), expected
        except Exception as error:  # noqa: BLE001 - each engine has errors of its own
            answers[name] = error, expected
    return answers


@pytest.mark.parametrize(("running", "format_", "place"), TRIED, indirect=["running"])
def test_every_question_has_the_answer_that_the_events_have(
    running: Running, written: Lake, format_: str, place: str
) -> None:
    wrong, repaired = {}, []
    for name, (answer, expected) in asked(running, format_, place, written.rows_of(format_)).items():
        limited = any(limit.holds(running.name, format_, name) for limit in LIMITS)
        right = not isinstance(answer, Exception) and same(answer, expected)
        if not right and not limited:
            wrong[name] = answer, expected
        if right and limited:
            repaired.append(name)
    assert wrong == {}
    assert repaired == [], "these are read now: take them off tests/engines/limits.py and docs/ENGINES.md"


@by("trino", "presto")
def test_buckets_and_bounds_spare_files(running: Running) -> None:
    """A question of one bucket, or of one offset, reads a part of what the whole table's reads."""
    for format_ in FORMATS:
        table = running.engine.tables[format_, "local"].table

        def read(condition: str, table: str = table) -> int:
            answer = running.server.ask(f"SELECT count(name), count(price) FROM {table} {condition}")
            return int(answer.stats["processedRows"])

        everything = read("")
        assert everything == 900
        assert read("WHERE hour = '2026-11-20T06'") == 300
        assert read("WHERE hour = '2026-11-20T06' AND kind_bucket = 'a/b'") == 50
        if running.name == "trino" and format_ == "delta":
            assert read("WHERE _partition = 0 AND _offset < 10") <= 300, "the log's bounds leave the first wave's files"


@by("trino")
def test_a_compacted_table_takes_fewer_splits_and_bytes(running: Running) -> None:
    sql = "SELECT count(name), count(price) FROM {} WHERE id >= 30"
    many, few = (
        running.server.ask(sql.format(running.engine.tables[name, "local"].table)) for name in ("delta", REWRITTEN)
    )
    assert many.rows == few.rows == [(870, 870)]
    assert few.stats["totalSplits"] < many.stats["totalSplits"]
    assert few.stats["physicalInputBytes"] < many.stats["physicalInputBytes"]


@by("druid")
def test_druids_delta_input_takes_no_list_of_records_and_no_widened_decimal(running: Running, written: Lake) -> None:
    columns = engines.columns(written)
    source = {"type": "delta", "tablePath": written.location("delta")}
    with pytest.raises(IngestFailed, match=r"Found Delta type Decimal\(15, 2\) but Parquet type has precision=9"):
        running.server.ingest(engines.ingestion("widened", {"inputSource": source}, columns))
    narrow = {"inputSource": {**source, "snapshotVersion": _widened_at(written) - 1}}
    with pytest.raises(IngestFailed, match="Unhandled type: COMPLEX"):
        running.server.ingest(engines.ingestion("legs", narrow, columns))
    plain = pa.schema([column for column in columns if column.name != "legs"])
    running.server.ingest(engines.ingestion("narrow", narrow, plain))
    running.server.wait_for_segments("narrow")
    assert running.server.ask('SELECT count(*), count(DISTINCT "id") FROM narrow') == [(600, 600)]


def _widened_at(written: Lake) -> int:
    """Version of the Delta table at which its columns changed last."""
    entries = sorted((written.root / "delta" / "_delta_log").glob("[0-9]*[0-9].json"))
    return max(int(entry.stem) for entry in entries if '"metaData"' in entry.read_text())


def test_the_arrow_data_set_of_delta_rs_hides_rows_from_a_filter(written: Lake) -> None:
    """It takes a bound that is not there for one that no row satisfies; so it is a reader without filters only."""
    rows = DeltaTable(written.location("delta")).to_pyarrow_dataset()
    least = min(row["price"] for row in written.rows)
    assert rows.count_rows() == len(written.rows)
    assert rows.count_rows(filter=pc.field("price") >= Decimal(least)) == 0
