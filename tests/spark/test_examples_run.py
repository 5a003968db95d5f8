"""Each command of help and pages runs, in directories with what it needs, and ends with the exit code it is to have."""

import json
import re
import shlex
import signal
import sys
from collections.abc import Iterator, Sequence
from datetime import UTC, datetime
from itertools import pairwise
from shutil import copytree

import duckdb
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from deltalake import DeltaTable, write_deltalake

from headrace.autoscaler.decision.policy import DEFAULTS, apply_assignments
from headrace.bench.simulation.workloads import SHAPES
from tests.servers.scripted import Reply, serve_script
from tests.support.doc_examples import ROOT, find_command, headrace_commands, list_blocks
from tests.support.example_directory import (
    FIRST_HOUR,
    NEXT_CLICK_ID,
    PARTITIONS,
    Example,
    ExampleDirectory,
    MakeTopic,
    Step,
    clicks,
    orders,
    take_steps,
)
from tests.support.writer_process import Site

# Why no step runs a command, by how it begins.
NOT_RUN = {
    "headrace audit pipelines.yaml --deep --report": "needs Dagster: tests/contract/test_orchestrator_hooks.py",
    "headrace bench": "takes minutes: tests/spark/test_bench_run.py runs smaller ones",
    "headrace chaos": "takes minutes: tests/spark/test_chaos.py runs it",
    "headrace demo": "has servers of its own: tests/spark/test_demo.py runs it in both formats",
    "headrace init --bootstrap-servers broker-1:9093 --topic clicks --security-protocol sasl_ssl --token-url": "needs "
    "a broker that takes tokens: tests/spark/test_oauth_run.py runs its like",
    "headrace simulate --trace hourly": "takes ten seconds of a core, as the one that is run",
    "headrace simulate --trace day --set": "takes ten seconds of a core, as the one that is run",
}
# Places of pages for clusters, and those of one machine.
PLACES_OF_A_CLUSTER = {"/etc/headrace/": "", "/config/": "", "s3://lake/": "/lake/"}


def exits(code: int, line: str) -> Example:
    return Example(line, code)


def process(line: str, code: int = 0) -> Example:
    return Example(line, code, has_process=True)


def until_sign(line: str, sign: str, stop: signal.Signals = signal.SIGTERM, meanwhile: Sequence[Step] = ()) -> Example:
    return Example(line, has_process=True, sign=sign, stop=stop, meanwhile=meanwhile)


def prepare_shop(directory: ExampleDirectory) -> None:
    copytree(ROOT / "docs" / "examples" / "shop", directory.root, dirs_exist_ok=True)


def prepare_first_topic(directory: ExampleDirectory) -> None:
    directory.site.fill(directory.topic, 200)
    directory.local_words["clicks"] = directory.topic


def prepare_clicks(directory: ExampleDirectory) -> None:
    """A pipeline with a raw table and a hook, whose topic has records that cannot be decoded."""
    directory.site.pipeline(
        "clicks",
        [directory.topic],
        raw=True,
        limits={"max_failed_ratio": 1},
        seal={"enabled": False, "reopen_after": "0 s"},
        hooks=[{"type": "webhook", "name": "druid", "url": directory.hook_url, "start": "earliest"}],
    )
    directory.write_config()
    directory.produce(clicks(400))
    directory.produce([*clicks(6, first=400, schema_id=NEXT_CLICK_ID), b"\0\0\0\0\1cut"])
    (directory.root / "keys.csv").write_text("user\n17\n18\n")
    (directory.root / "specs").mkdir()


def prepare_small(directory: ExampleDirectory) -> None:
    """A pipeline and its records, no more."""
    directory.site.pipeline("clicks", [directory.topic], limits={"max_failed_ratio": 1})
    directory.write_config()
    directory.produce(clicks(40))


def prepare_drivers(directory: ExampleDirectory) -> None:
    """A pipeline with two tables, and a command that starts its driver in its own way."""
    targets = {"com.shop.Click": str(directory.lake), "com.shop.Order": f"{directory.root}/lake/orders"}
    directory.site.pipeline("clicks", [directory.topic], route={"by": "record", "targets": targets})
    directory.site.pipelines["clicks"]["table"]["location"] = f"{directory.root}/lake/logs/clicks"
    directory.site.overrides["supervisor"] = {"port": 0, "lease_expiry": "6 s"}
    directory.write_config()
    directory.produce([*clicks(40), *orders(10)])
    wrapper = directory.root / "my-wrapper"
    wrapper.write_text(f"#!/bin/sh\nexec {sys.executable} -m headrace.writer.cli run pipelines.yaml\n")
    wrapper.chmod(0o755)
    directory.local_words["my-wrapper"] = str(wrapper)


def prepare_privacy(directory: ExampleDirectory) -> None:
    """A pipeline that hashes a field, with a keyring that is still to be made."""
    directory.site.pipeline("clicks", [directory.topic], privacy={"fields": {"user.email": "hash"}})
    directory.site.overrides["keys"] = {"file": str(directory.root / "keys.json")}
    directory.write_config()
    directory.produce(orders(20))


def protect_again(directory: ExampleDirectory) -> None:
    """Write it hashed once more, and then no more."""
    directory.write_config()
    directory.produce(orders(4))
    directory.commit()
    write_in_the_clear(directory)


def write_in_the_clear(directory: ExampleDirectory) -> None:
    """Protect the field no more."""
    directory.write_config(privacy={"fields": {"user.email": "clear"}})


def prepare_shadow(directory: ExampleDirectory) -> None:
    """A pipeline, and a file with other rules."""
    directory.site.pipeline("clicks", [directory.topic])
    directory.write_config()
    directory.write_config("new.yaml", specs={"com.shop.Click": {"derive": {"country": "lower(country)"}}})
    directory.produce(clicks(40))


def take_new_location(directory: ExampleDirectory) -> None:
    """Set the location in the new file, as `promote` says."""
    specs = {"com.shop.Click": {"derive": {"country": "lower(country)"}}}
    directory.write_config("new.yaml", specs=specs, table={"location": f"{directory.root}/lake/clicks_v2"})


def prepare_foreign_table(directory: ExampleDirectory) -> None:
    """A Delta table that headrace did not make."""
    directory.site.pipeline("clicks", [directory.topic], start={"offsets": {directory.topic: {0: 0, 1: 0}}})
    directory.write_config()
    directory.produce(clicks(4))
    rows = pa.table(
        {
            "event_id": ["old"],
            "event_time": pa.array([FIRST_HOUR], pa.timestamp("us", "UTC")),
            "hour": ["2026-11-20T05"],
        }
    )
    write_deltalake(str(directory.lake), rows, partition_by=["hour"])


def change_by_another(directory: ExampleDirectory) -> None:
    DeltaTable(str(directory.lake)).delete("user_id = 1")


def make_iceberg(directory: ExampleDirectory) -> None:
    directory.write_config(table={"location": str(directory.lake), "format": "iceberg", "name": "shop.clicks"})


def register_next_schema(directory: ExampleDirectory) -> None:
    """Make the schema known whose records are dead letters."""
    directory.site.overrides["registry"]["files"][NEXT_CLICK_ID] = str(directory.root / "new.avsc")
    directory.write_config()


def name_version(directory: ExampleDirectory) -> None:
    """Name the version that the table has, and the time now."""
    explained = json.loads(directory.call_well("headrace explain pipelines.yaml --json"))
    directory.local_words |= {
        "1840": str(explained["pipelines"]["clicks"]["version"]),
        "2026-11-20T05:00Z": datetime.now(UTC).isoformat(),
    }


def name_checkpoint(directory: ExampleDirectory) -> None:
    """Name the checkpoint of the pipeline's run, as a person finds it."""
    (query,) = (directory.root / "checkpoints" / "clicks").glob("0*")
    directory.local_places |= {"/path/of/a/query": str(query), "s3://bucket/checkpoints/query": str(query)}


def ask_raw_table(directory: ExampleDirectory) -> None:
    """Run the query of the page of raw tables."""
    (block,) = [block for block in list_blocks() if (block.page, block.language) == ("docs/RAW.md", "sql")]
    with duckdb.connect() as connection:
        for name in ("clicks", "clicks_raw"):
            connection.register(name, DeltaTable(str(directory.lake.with_name(name))).to_pyarrow_table())
        ((record, _),) = connection.sql(block.text).fetchall()
    assert record == clicks(1, first=17)[0]


def end_day(directory: ExampleDirectory) -> None:
    directory.call_well("headrace seal pipelines.yaml --until 2026-11-21T00:00Z --yes")


def commit(directory: ExampleDirectory) -> None:
    directory.commit()


def add_rows(directory: ExampleDirectory) -> None:
    directory.produce(clicks(8, first=1_000 + len(directory.records)))


def add_gap(directory: ExampleDirectory) -> None:
    """Skip new records: a gap that the examples name."""
    add_rows(directory)
    directory.call_well("headrace gaps open pipelines.yaml --reason 'only new events matter' --yes")
    name_gap(directory)


def name_gap(directory: ExampleDirectory) -> None:
    """Name the gap that is open, and where it begins in the topic."""
    code, output = directory.call("headrace gaps list pipelines.yaml --json")
    assert code == 1, output
    (gap,) = json.loads(output)["pipelines"]["clicks"]
    directory.local_words |= dict.fromkeys(("3f2a", "3f2a9c41", "4f1c"), gap["id"])
    # The topic is its own mirror: each offset is the same there.
    directory.local_words |= {"0:5000=1200": "0:0=0", "1:4800=990": "1:0=0"}


def write_archive(directory: ExampleDirectory) -> None:
    """Write the records as a connector does."""
    directory.write_archive(
        directory.root / "archive" / "clicks", ("topic", "partition", "offset", "timestamp", "value")
    )


def write_archive_of_short_names(directory: ExampleDirectory) -> None:
    directory.local_places["/archive"] = str(directory.root / "short")
    directory.write_archive(directory.root / "short", ("t", "p", "o", "ts", "body"))


def write_archive_of_rows(directory: ExampleDirectory) -> None:
    """Write rows that somebody decoded, without offsets."""
    directory.local_places["/archive"] = str(directory.root / "rows")
    rows = [{"event_id": f"late-{n}", "event_time": FIRST_HOUR, "user_id": n, "country": "DE"} for n in range(3)]
    (directory.root / "rows").mkdir()
    pq.write_table(pa.Table.from_pylist(rows), directory.root / "rows" / "part-0.parquet")


def write_raw_table(directory: ExampleDirectory) -> None:
    """Write the raw table of an earlier pipeline of the topic."""
    table = {"location": f"{directory.root}/lake/old_clicks", "raw": f"{directory.root}/lake/old_clicks_raw"}
    directory.write_config("old.yaml", table=table)
    directory.commit("old.yaml")


def name_driver(directory: ExampleDirectory) -> None:
    """Name the address of the driver that runs."""
    log = max(directory.root.glob("process-*.log"), key=lambda path: path.stat().st_mtime)
    (url,) = re.findall(r"http_listening \S*?url=(\S+)", log.read_text())
    directory.local_places |= {"http://clicks:9643": url, "http://orders:9643": url}


SCENARIOS: dict[str, Sequence[Step]] = {
    "without servers": (
        prepare_shop,
        "headrace test",
        "headrace test specs/",
        "headrace test specs/ --junit tests.xml",
        "headrace test specs/ --junit tests.xml -n auto",
        "headrace test specs/ -- --durations 5",
        "headrace test specs/clicks.test.yaml -v -k 'Germany and not tombstone'",
        "headrace test 'specs/clicks.test.yaml::a tombstone' -x",
        "headrace autoscaler explain --facts docs/examples/autoscale-facts.json",
        "headrace simulate --trace day --plot day.png",
    ),
    "a table": (
        prepare_clicks,
        "headrace validate pipelines.yaml",
        "headrace validate pipelines.yaml --sample 5000",
        "headrace preview pipelines.yaml --at assigned",
        "headrace preview pipelines.yaml --at assigned -n 5",
        "headrace preview pipelines.yaml -n 50 --save specs/orders.jsonl",
        "headrace preview pipelines.yaml --file specs/orders.jsonl --at assigned",
        "headrace size pipelines.yaml",
        "headrace size pipelines.yaml --events-per-second 50000",
        "headrace size pipelines.yaml --prices docs/examples/prices.yaml",
        commit,
        ask_raw_table,
        "headrace status pipelines.yaml",
        "headrace status pipelines.yaml --group",
        "headrace status pipelines.yaml --group --tables",
        "headrace status pipelines.yaml --search orders --sort lag",
        "headrace status pipelines.yaml --tables",
        "headrace status /etc/headrace/pipelines.yaml",
        until_sign("headrace status pipelines.yaml --watch", "clicks", signal.SIGINT),
        "headrace explain pipelines.yaml",
        "headrace explain pipelines.yaml --batch 41",
        "headrace explain pipelines.yaml --offset app/0:1234",
        "headrace audit pipelines.yaml",
        "headrace audit pipelines.yaml --deep",
        "headrace audit pipelines.yaml --since 2026-11-20T00:00Z --deep",
        "headrace buckets pipelines.yaml",
        "headrace buckets pipelines.yaml --bucket 2026-11-20",
        "headrace buckets pipelines.yaml --state closed",
        "headrace buckets pipelines.yaml --state reopened --since 2026-11-20T00:00Z",
        "headrace ddl pipelines.yaml --engine trino",
        "headrace ddl pipelines.yaml --engine dbt",
        "headrace ddl pipelines.yaml --engine dbt --adapter duckdb",
        "headrace ddl /etc/headrace/pipelines.yaml --engine trino --table delta.lake.clicks",
        "headrace dlq list pipelines.yaml",
        "headrace dlq list pipelines.yaml --since 2026-11-20T00:00Z",
        "headrace dlq list pipelines.yaml --pipeline clicks --reason 'means another schema'",
        "headrace dlq show pipelines.yaml",
        "headrace dlq show pipelines.yaml --reason 'unknown schema' -n 5",
        "headrace gaps list pipelines.yaml",
        "headrace gaps list pipelines.yaml --all",
        "headrace hooks list pipelines.yaml",
        "headrace schema plan pipelines.yaml --file click-v2.avsc",
        "headrace schema plan pipelines.yaml --file new.avsc",
        "headrace schema plan pipelines.yaml --pipeline clicks --file next.avsc",
        "headrace schema plan pipelines.yaml --pipeline clicks --id 7",
        "headrace schema accept pipelines.yaml --id 7",
        "headrace schema accept pipelines.yaml --pipeline clicks",
        "headrace schema accept pipelines.yaml --pipeline clicks --since 2026-11-20T05:00Z --yes",
        "headrace supervisor explain pipelines.yaml",
        "headrace supervisor explain /etc/headrace/pipelines.yaml",
        "headrace autoscaler explain pipelines.yaml",
        "headrace autoscaler explain pipelines.yaml --save facts.json",
        exits(2, "headrace autoscaler run pipelines.yaml"),
        exits(2, "headrace autoscaler run pipelines.yaml --dry-run"),
        exits(2, "headrace autoscaler run pipelines.yaml --set utilization_target=0.7"),
        "headrace limit pipelines.yaml --pipeline clicks --records-per-second 5000",
        "headrace limit pipelines.yaml --pipeline clicks --records-per-second 5000 --reason 'the store is being moved'",
        "headrace limit pipelines.yaml",
        "headrace limit pipelines.yaml --pipeline clicks --off",
        "headrace pause pipelines.yaml --pipeline clicks --reason 'the bucket moves'",
        "headrace pause pipelines.yaml --pipeline clicks --reason 'the registry moves'",
        "headrace resume pipelines.yaml --pipeline clicks",
        "headrace compact pipelines.yaml",
        "headrace compact pipelines.yaml --bucket 2026-11-20T05",
        "headrace seal pipelines.yaml",
        "headrace seal pipelines.yaml --yes",
        "headrace seal pipelines.yaml --until 2026-11-20T06:00Z",
        "headrace seal pipelines.yaml --until 2026-11-20T06:00Z --yes",
        "headrace seal pipelines.yaml 2026-11-20T05 --yes",
        "headrace seal pipelines.yaml 2026-11-20T05 --with-gap --yes",
        "headrace wait pipelines.yaml --sealed 2026-11-20T05 --timeout '30 min'",
        "headrace wait pipelines.yaml --sealed 2026-11-20T05 --timeout 2h",
        "headrace seal pipelines.yaml --until 2026-11-20T09:00Z --yes",
        end_day,
        "headrace wait pipelines.yaml --sealed 2026-11-20 --timeout 2h",
        "headrace hooks skip pipelines.yaml --hook druid --bucket 2026-11-20T05",
        "headrace hooks skip pipelines.yaml --hook druid --bucket 2026-11-20T05 --yes",
        "headrace hooks run pipelines.yaml --hook druid",
        "headrace hooks run pipelines.yaml",
        "headrace hooks run pipelines.yaml --hook druid --bucket 2026-11-20T05",
        register_next_schema,
        "headrace dlq replay pipelines.yaml --schema-id 7",
        "headrace dlq replay pipelines.yaml --schema-id 4711 --yes",
        "headrace seal pipelines.yaml --yes",
        "headrace wait pipelines.yaml --sealed 2026-11-20T05 --version 2",
        "headrace topic adopt pipelines.yaml --pipeline clicks",
        "headrace topic adopt pipelines.yaml --pipeline clicks --yes",
        "headrace topic adopt pipelines.yaml --pipeline clicks --offsets-of mirror-group --yes",
        "headrace reprocess pipelines.yaml --buckets 2026-11-20T05..2026-11-20T07 --from raw",
        "headrace reprocess pipelines.yaml --buckets 2026-11-20T05..2026-11-20T07 --from raw --yes",
        "headrace reprocess pipelines.yaml --buckets 1970-01-21T18 --from raw",
        "headrace reprocess pipelines.yaml --buckets 1970-01-21T18 --from raw --yes",
        "headrace vacuum pipelines.yaml",
        "headrace delete-rows pipelines.yaml --where 'user_id = 42'",
        """headrace delete-rows pipelines.yaml --where "user_id IN (42, 43) AND country = 'DE'" --yes""",
        "headrace delete-rows pipelines.yaml --keys keys.csv --column user_id --file-column user --yes",
        "headrace retention pipelines.yaml",
        "headrace retention pipelines.yaml --yes",
        name_version,
        add_rows,
        commit,
        "headrace rewind pipelines.yaml --to 2026-11-20T05:00Z",
        "headrace rewind pipelines.yaml --pipeline clicks --to 2026-11-20T05:00Z",
        "headrace rewind pipelines.yaml --pipeline clicks --to 1840",
        "headrace rewind pipelines.yaml --pipeline clicks --to 1840 --yes",
        change_by_another,
        "headrace table accept pipelines.yaml --pipeline clicks",
        "headrace table accept pipelines.yaml --pipeline clicks --yes",
        "headrace audit pipelines.yaml --deep",
        make_iceberg,
        "headrace convert pipelines.yaml --pipeline clicks",
    ),
    "a first file": (
        prepare_first_topic,
        "headrace init --bootstrap-servers broker-1:9092 --registry-url http://registry:8081 --topic clicks",
    ),
    "drivers": (
        prepare_drivers,
        "headrace preview pipelines.yaml --target com.shop.Order",
        process("headrace run pipelines.yaml --once"),
        "headrace status pipelines.yaml --tables --search com.shop",
        "headrace buckets pipelines.yaml --target com.shop.Click",
        "headrace ddl pipelines.yaml --engine trino",
        "headrace compact pipelines.yaml --target com.shop.Click",
        "headrace seal pipelines.yaml --target com.shop.Click --until 2026-11-21T00:00Z",
        "headrace doctor pipelines.yaml",
        name_checkpoint,
        "headrace doctor --checkpoint /path/of/a/query",
        "headrace doctor --checkpoint s3://bucket/checkpoints/query --bootstrap-servers broker-1:9092",
        add_rows,
        until_sign(
            "headrace run pipelines.yaml",
            "batch_committed",
            meanwhile=(
                name_driver,
                "headrace status --all http://clicks:9643 --all http://orders:9643",
                "headrace reload pipelines.yaml",
            ),
        ),
        until_sign("headrace run pipelines.yaml --watch-config", "http_listening"),
        until_sign("headrace supervisor run pipelines.yaml", "http_listening"),
        until_sign("headrace supervisor run pipelines.yaml --watch-config", "http_listening"),
        until_sign("headrace supervisor run pipelines.yaml -- my-wrapper run.sh", "http_listening"),
        add_rows,
        process("headrace run pipelines.yaml --once --new-run --yes"),
        "headrace audit pipelines.yaml --deep",
    ),
    "gaps": (
        prepare_small,
        commit,
        add_rows,
        "headrace gaps open pipelines.yaml --reason 'only new events matter'",
        "headrace gaps open pipelines.yaml --reason 'a week of lag, the dashboards come first'",
        "headrace gaps open pipelines.yaml --pipeline clicks --to latest --reason 'retention in two hours'",
        "headrace gaps open pipelines.yaml --reason 'a week of lag, the dashboards come first' --yes",
        name_gap,
        exits(1, "headrace gaps list pipelines.yaml"),
        exits(1, "headrace gaps list pipelines.yaml --all"),
        "headrace gaps show pipelines.yaml 3f2a",
        "headrace gaps show pipelines.yaml 3f2a9c41",
        "headrace gaps show pipelines.yaml 4f1c",
        "headrace backfill pipelines.yaml",
        "headrace backfill pipelines.yaml --gap 3f2a9c41",
        "headrace backfill pipelines.yaml --gap 3f2a9c41 --yes",
        add_rows,
        "headrace gaps open pipelines.yaml --pipeline clicks --to latest --reason 'retention in two hours' --yes",
        "headrace backfill pipelines.yaml --pipeline clicks --yes",
        add_gap,
        "headrace backfill pipelines.yaml --lag-max '30 min' --yes",
        add_gap,
        "headrace backfill pipelines.yaml --yes",
        add_gap,
        "headrace backfill pipelines.yaml --from-mirror broker-9:9092/clicks --map 0:5000=1200 --map 1:4800=990 --yes",
        add_gap,
        write_archive,
        "headrace backfill pipelines.yaml --from-archive s3://archive/clicks --dry-run",
        "headrace backfill pipelines.yaml --from-archive s3://archive/clicks --yes",
        add_gap,
        write_archive,
        (
            "headrace backfill pipelines.yaml --gap 3f2a9c41 --from-archive s3://archive/clicks "
            "--columns offset=offset,partition=partition,value=value --yes"
        ),
        add_gap,
        write_archive_of_short_names,
        (
            "headrace backfill pipelines.yaml --from-archive /archive "
            "--columns topic=t,partition=p,offset=o,time=ts,value=body --yes"
        ),
        add_gap,
        write_archive_of_rows,
        "headrace backfill pipelines.yaml --from-archive /archive --by-time event_id --yes",
        add_gap,
        write_raw_table,
        "headrace backfill pipelines.yaml --from-raw /lake/old_clicks_raw --yes",
        add_gap,
        "headrace gaps close pipelines.yaml 3f2a --reason 'the archive has no such day'",
        "headrace gaps close pipelines.yaml 4f1c --reason 'no copy exists' --by ann --yes",
        add_gap,
        "headrace gaps close pipelines.yaml 3f2a9c41 --reason 'no copy exists' --yes",
        add_gap,
        "headrace gaps close pipelines.yaml 3f2a9c41 --reason 'the archive begins later' --yes",
        "headrace audit pipelines.yaml --deep",
    ),
    "private fields": (
        prepare_privacy,
        "headrace keys rotate pipelines.yaml",
        "headrace keys rotate pipelines.yaml --yes",
        "headrace keys check pipelines.yaml",
        commit,
        write_in_the_clear,
        "headrace privacy list pipelines.yaml",
        "headrace privacy list pipelines.yaml --pipeline clicks",
        "headrace privacy release pipelines.yaml --record com.shop.Order --path user.email",
        "headrace privacy release pipelines.yaml --record com.shop.Order --path user.email --reason consent --yes",
        protect_again,
        (
            "headrace privacy release pipelines.yaml --pipeline clicks --record com.shop.Order --path user.email "
            "--reason consent --yes"
        ),
    ),
    "a shadow": (
        prepare_shadow,
        commit,
        process("headrace shadow pipelines.yaml --with new.yaml --location /lake/clicks_v2"),
        exits(1, "headrace diff pipelines.yaml --with new.yaml --shadow /lake/clicks_v2"),
        exits(1, "headrace diff pipelines.yaml --with new.yaml --shadow /lake/clicks_v2 --samples 2"),
        "headrace promote pipelines.yaml --with new.yaml --shadow /lake/clicks_v2",
        "headrace promote pipelines.yaml --with new.yaml --shadow /lake/clicks_v2 --no-diff --yes",
        "headrace promote pipelines.yaml --with new.yaml --shadow /lake/clicks_v2 --yes",
        take_new_location,
        exits(1, "headrace diff pipelines.yaml --with new.yaml"),
        "headrace promote new.yaml --with pipelines.yaml --shadow /lake/clicks --yes",
        process("headrace shadow new.yaml --with pipelines.yaml --location /lake/clicks"),
    ),
    "a shadow of another release": (
        prepare_shadow,
        commit,
        process("headrace shadow pipelines.yaml --location /lake/clicks_v2"),
    ),
    "a table of others": (
        prepare_foreign_table,
        "headrace table adopt pipelines.yaml",
        "headrace table adopt pipelines.yaml --pipeline clicks",
        "headrace table adopt pipelines.yaml --yes",
    ),
}


def list_examples() -> Iterator[Example]:
    """Yield the examples of all scenarios."""
    for steps in SCENARIOS.values():
        yield from examples_of(steps)


def examples_of(steps: Sequence[Step]) -> Iterator[Example]:
    """Yield the examples of steps, and those that are taken while others run."""
    for step in steps:
        if isinstance(step, str):
            yield Example(step)
        elif isinstance(step, Example):
            yield step
            yield from examples_of(step.meanwhile)


def without_cluster(line: str) -> str:
    """Return a command with the places of one machine in directory of a cluster's."""
    for directory, local in PLACES_OF_A_CLUSTER.items():
        line = line.replace(directory, local)
    return line


def test_each_command_of_help_and_pages_runs_or_says_why_it_cannot() -> None:
    documented = {without_cluster(command.line): command.position for command in headrace_commands()}
    steps = {without_cluster(shlex.join(shlex.split(example.line))) for example in list_examples()}
    left_out = {line for line in documented if line.startswith(tuple(NOT_RUN))}
    missing = {f"{documented[line]}: {line}" for line in documented.keys() - steps - left_out}
    assert not missing, (
        f"add a step to a scenario of tests/spark/test_examples_run.py, or a reason to NOT_RUN: {missing}"
    )
    assert not steps - documented.keys(), "no page shows this any more: take out the step"
    assert not [begin for begin in NOT_RUN if not any(line.startswith(begin) for line in left_out)]


def test_the_help_lists_each_exit_code_that_is_expected() -> None:
    for example in list_examples():
        command, _ = find_command(shlex.split(example.line)[1:])
        codes = command.help.partition("Exit codes:")[2]
        assert re.search(rf"\b{example.code}\b", codes), example


def test_most_examples_end_with_exit_0() -> None:
    codes = [example.code for example in list_examples()]
    assert codes.count(0) > 0.9 * len(codes)


def test_a_parameter_of_a_simulation_that_is_not_run_is_one_that_there_is() -> None:
    for command in headrace_commands():
        if command.arguments[1] == "simulate":
            options = list(pairwise(command.arguments))
            assert {value for option, value in options if option == "--trace"} <= SHAPES.keys(), command
            apply_assignments(DEFAULTS, [value for option, value in options if option == "--set"])


@pytest.fixture
def directory(site: Site, topic: MakeTopic, monkeypatch: pytest.MonkeyPatch) -> Iterator[ExampleDirectory]:
    """A directory of this test's own, and the current one."""
    monkeypatch.chdir(site.root)
    with serve_script(lambda _: Reply(200)) as server:
        yield ExampleDirectory(site, topic(PARTITIONS, prefix="clicks", **{"retention.ms": "-1"}), server.url)


@pytest.mark.slow
@pytest.mark.usefixtures("scratch")
@pytest.mark.parametrize("steps", SCENARIOS.values(), ids=SCENARIOS)
def test_the_examples_run_one_after_another(steps: Sequence[Step], directory: ExampleDirectory) -> None:
    problems = take_steps(steps, directory)
    assert not problems, "\n\n".join(problems)
