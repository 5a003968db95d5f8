"""The doctor on checkpoints that headrace did not write: a stateful query of two Kafka sources, on a disk and on S3."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from confluent_kafka import Producer
from typer.testing import CliRunner

from headrace.writer.cli.main import app
from headrace.writer.driver.readers.spark_reader import KAFKA_OPTIONS
from headrace.writer.storage.locations import store_at
from tests.servers.objects import ObjectServer
from tests.support.damaged_checkpoint import blank, rewrite, session
from tests.support.writer_process import Site

pytestmark = [pytest.mark.slow, pytest.mark.timeout(600)]
MakeTopic = Callable[..., str]


@pytest.fixture(scope="module")
def foreign(
    tmp_path_factory: pytest.TempPathFactory, bootstrap: str, registry_url: str, topic: MakeTopic
) -> tuple[Path, Site, list[str]]:
    """A checkpoint of a query that counts the records of two topics by key, each a source of its own."""
    topics = [topic(1, prefix="left"), topic(2, prefix="right")]
    pipeline_copy = blank(tmp_path_factory.mktemp("foreign") / "site", bootstrap, registry_url, topics[0])
    _send(bootstrap, topics)
    checkpoint = pipeline_copy.site.root / "query"
    with session(pipeline_copy.config) as spark:
        spark.conf.set("spark.sql.shuffle.partitions", "2")
        for _ in range(2):
            _count(spark, bootstrap, topics, checkpoint)
            _send(bootstrap, topics)
    return checkpoint, pipeline_copy.site, topics


def _send(bootstrap: str, topics: list[str]) -> None:
    sender = Producer({"bootstrap.servers": bootstrap})
    for name in topics:
        for number in range(20):
            sender.produce(name, str(number), str(number % 3), partition=0)
    assert sender.flush(30) == 0


def _count(spark: Any, bootstrap: str, topics: list[str], checkpoint: Path) -> None:
    def source(name: str) -> Any:
        settings = {"kafka.bootstrap.servers": bootstrap, "startingOffsets": "earliest", **KAFKA_OPTIONS}
        return spark.readStream.format("kafka").options(**settings).option("subscribe", name).load()

    counted = source(topics[0]).union(source(topics[1])).groupBy("key").count()
    query = (
        counted.writeStream.option("checkpointLocation", str(checkpoint)).outputMode("update")
        .trigger(availableNow=True).foreachBatch(lambda frame, _: frame.collect()).start()
    )  # fmt: skip
    query.awaitTermination(240)


def run_doctor(*words: object) -> tuple[int, dict[str, Any]]:
    result = CliRunner().invoke(app, ["doctor", *map(str, words), "--json"], catch_exceptions=False)
    (document,) = json.loads(result.output)["checkpoints"]
    return result.exit_code, document


def failed_checks(document: dict[str, Any]) -> dict[str, str]:
    return {check["name"]: check["level"] for check in document["checks"] if check["ok"] is False}


def message(document: dict[str, Any], name: str) -> str:
    return next(str(check["message"]) for check in document["checks"] if check["name"] == name)


def test_a_checkpoint_of_another_query_is_examined_with_all_its_sources(
    foreign: tuple[Path, Site, list[str]], tmp_path: Path
) -> None:
    import shutil

    checkpoint, site, topics = foreign
    code, document = run_doctor("--checkpoint", checkpoint, "--bootstrap-servers", site.bootstrap)
    assert (code, failed_checks(document)) == (0, {})
    said = {check["name"]: check["message"] for check in document["checks"]}
    assert all(name in said["topics"] for name in topics)
    assert said["log"] == "Kafka holds what comes next"
    hint = "It may be removed by hand only where your sink has nothing of batch"
    damaged = tmp_path / "damaged"
    shutil.copytree(checkpoint, damaged)
    newest = max((damaged / "offsets").glob("[0-9]*"), key=lambda path: int(path.name))
    rewrite(damaged / "commits" / newest.name, b"")
    code, document = run_doctor("--checkpoint", damaged)
    assert (code, document["leads_to"], failed_checks(document)) == (1, "L3", {"files": "L3"})
    assert hint in message(document, "files"), "Spark runs the batch again without it"
    rewrite(newest, newest.read_bytes()[:-9])
    document = run_doctor("--checkpoint", damaged)[1]
    assert document["leads_to"] == "L3"
    assert hint not in message(document, "files"), "the batch is done, and nothing says where it ended"


def test_on_s3_it_finds_the_same(foreign: tuple[Path, Site, list[str]], on_s3: ObjectServer) -> None:
    checkpoint, site, _ = foreign
    location = f"{on_s3.bucket()}/query"
    store = store_at(location)
    for path in checkpoint.rglob("*"):
        if path.is_file() and not path.name.endswith(".crc"):
            store.put(path.relative_to(checkpoint).as_posix(), path.read_bytes())
    code, document = run_doctor("--checkpoint", location, "--bootstrap-servers", site.bootstrap)
    assert (code, failed_checks(document)) == (0, {})
    store.put("metadata", b"")
    assert failed_checks(run_doctor("--checkpoint", location)[1]) == {"metadata": "L3"}


def test_records_that_the_query_missed_are_named(foreign: tuple[Path, Site, list[str]]) -> None:
    checkpoint, site, topics = foreign
    site.forget(topics[0], {0: 55})
    code, document = run_doctor("--checkpoint", checkpoint, "--bootstrap-servers", site.bootstrap)
    assert (code, failed_checks(document)) == (1, {"log": "L5"})
    (said,) = [check["message"] for check in document["checks"] if check["name"] == "log"]
    assert said.startswith(f"Kafka no longer holds [40, 55) of {topics[0]}/0")
