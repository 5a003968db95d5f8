"""The configuration file: what it accepts, and what it says about what it refuses."""

from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
import yaml

from headrace.writer.config.loader import load
from headrace.writer.config.pipelines import Config
from headrace.writer.config.sections.table import layout
from headrace.writer.core.errors import ConfigError
from tests.support.config_document import smallest_config

PARQUET = {"location": "/lake", "format": "parquet"}
SECRET = "hunter2-not-to-be-shown"


@pytest.fixture
def file(tmp_path):
    return tmp_path / "headrace.yaml"


def loaded(file: Path, raw: Any) -> Config:
    file.write_text(raw if isinstance(raw, str) else yaml.safe_dump(raw))
    return load(file)


def refusal(file: Path, raw: Any) -> str:
    with pytest.raises(ConfigError) as refused:
        loaded(file, raw)
    assert refused.value.exit_code == 2
    assert SECRET not in str(refused.value)
    return str(refused.value)


def test_four_sections_are_enough(file):
    config = loaded(file, smallest_config())
    clicks = config.pipelines["clicks"]
    assert clicks.start == "earliest"
    assert clicks.dead_letters == "/lake/clicks_dead_letters"
    assert clicks.bucket == {"type": "event_time", "width": timedelta(hours=1), "zone": "UTC"}
    assert clicks.commit.max_delay == timedelta(minutes=10)
    assert clicks.roll.target_file_size == 128 * 2**20


def test_units_are_read_everywhere(file):
    raw = smallest_config(
        commit={"max_delay": "30 s"}, roll={"target_file_size": "64 MiB"}, memory={"buffer": "1 GiB"},
        event_time={"field": "at", "unit": "ms", "max_age": "2 w", "max_ahead": "5 min"},
        bucket={
            "type": "composite", "parts": [{"type": "event_time", "width": "1 d"}, {"type": "field", "field": "a"}],
        },
    )  # fmt: skip
    clicks = loaded(file, raw).pipelines["clicks"]
    assert clicks.commit.max_delay == timedelta(seconds=30)
    assert (clicks.roll.target_file_size, clicks.memory.buffer) == (2**26, 2**30)
    assert (clicks.event_time.max_age, clicks.event_time.max_ahead) == (timedelta(days=14), timedelta(minutes=5))
    assert clicks.bucket["parts"][0]["width"] == timedelta(days=1)
    assert layout(clicks.bucket) == "composite of event_time, width 1 d and field, field a"


CLICKS = smallest_config()["pipelines"]["clicks"]


@pytest.mark.parametrize(
    ("section", "change", "said"),
    [
        ("", {"piplines": {}}, ["file:", "unknown key 'piplines'", "did you mean 'pipelines'?"]),
        ("kafka", {"bootstrap_server": "x"}, ["kafka:", "'bootstrap_server'", "did you mean 'bootstrap_servers'?"]),
        ("kafka", {"qqq": "x"}, ["kafka:", "unknown key 'qqq'", "known here: bootstrap_servers, request_timeout"]),
        ("kafka", {"request_timeout": "30"}, ["kafka.request_timeout:", "'30' needs a number and a unit", "'10 min'"]),
        ("kafka", {"request_timeout": "0 s"}, ["kafka.request_timeout:", "must be longer than zero"]),
        ("registry", {"files": {1: "a.avsc"}}, ["registry:", "give either 'url' or 'files'"]),
        ("registry", {"url": None}, ["registry: pipelines.clicks reads records that name a", "or files of schemas"]),
        ("registry", {"url": "me:sesame@registry"}, ["registry:", "'url' is no http:// or https:// URL"]),
        ("", {"checkpoints": "here"}, ["checkpoints:", "'here' is relative; write the absolute path"]),
        ("", {"checkpoints": "ftp://x/y"}, ["checkpoints:", "ftp://x/y", "only paths, s3://, gs://, az:// and abfss://"]),
        ("", {"pipelines": {}}, ["pipelines:", "at least 1 item"]),
        ("", {"pipelines": {"Upper Case": CLICKS}}, ["'Upper Case'", "use lower-case letters"]),
    ],
)  # fmt: skip
def test_a_fault_outside_the_pipelines_is_named_with_its_place_and_mend(file, section, change, said):
    raw = smallest_config()
    (raw[section] if section else raw).update(change)
    message = refusal(file, raw)
    assert all(part in message for part in [str(file), *said]), message


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"topic": "clicks"}, ["pipelines.clicks:", "unknown key 'topic'", "did you mean 'topics'?"]),
        ({"topics": []}, ["pipelines.clicks.topics:", "name at least one topic"]),
        ({"topics": {"pattern": "("}}, ["pipelines.clicks.topics.pattern:", "'(' is no regular expression"]),
        ({"topics": {"names": ["a"], "except": ["b"]}}, ["clicks.topics:", "'except' takes topics out"]),
        ({"topics": {"patern": "a"}}, ["pipelines.clicks.topics:", "did you mean 'pattern'?"]),
        ({"topics": {"names": ["a", "b"], "max": 1}}, ["clicks.topics:", "2 topics are named, and 'max' is 1"]),
        ({"event_time": {"feild": "at"}}, ["pipelines.clicks.event_time:", "'feild'", "did you mean 'field'?"]),
        ({"event_time": {"field": "at", "unit": "hours"}}, ["pipelines.clicks.event_time.unit:", "'s', 'ms', 'us'"]),
        ({"event_time": {"field": "at", "max_age": "1 year"}}, ["pipelines.clicks.event_time.max_age:", "'1 year'"]),
        ({"table": {"location": "lake/clicks"}}, ["pipelines.clicks.table.location:", "'lake/clicks' is relative"]),
        ({"table": {"location": "hdfs://b/c"}}, ["pipelines.clicks.table.location:", "not hdfs://"]),
        ({"table": {"location": "s3a://lake/c"}}, ["pipelines.clicks.table.location:", "write it as s3://lake/c"]),
        ({"table": {"location": "s3://lake"}}, ["table.location:", "write it as s3://bucket/folder"]),
        ({"table": {"location": "s3://Lake/c"}}, ["table.location:", "write it as s3://bucket/folder"]),
        ({"table": {"location": "s3://lake/a//c"}}, ["table.location:", "write it as s3://bucket/folder"]),
        ({"table": {"location": "s3://k:s@lake/c"}}, ["table.location:", "write it as s3://bucket/folder"]),
        ({"table": {"location": "/lake", "entropy_bits": 17}}, ["table.entropy_bits:", "less than or equal to 16"]),
        ({"table": {"location": "/lake", "format": "hudi"}}, ["pipelines.clicks.table.format:", "'delta'"]),
        ({"table": {**PARQUET, "entropy_bits": 8}}, ["pipelines.clicks:", "table.entropy_bits would hide the buckets"]),
        ({"table": PARQUET, "roll": {"target_file_size": "2 GiB"}}, ["clicks:", "target_file_size is at most 1 GiB"]),
        (
            {"table": PARQUET, "bucket": {"type": "event_time", "width": "1 h", "column": "_h"}},
            ["clicks:", "bucket column '_h' cannot name folders", "begin it with a letter"],
        ),
        ({"table": {"location": "/lake", "checkpoint_interval": 0}}, ["table.checkpoint_interval:", "greater than"]),
        ({"commit": {"max_offsets": 0}}, ["pipelines.clicks.commit.max_offsets:", "greater than"]),
        ({"roll": {"target_file_size": 0}}, ["pipelines.clicks.roll.target_file_size:", "'128 MiB'"]),
        ({"roll": {"target_file_size": 128}}, ["clicks.roll.target_file_size:", "128 needs a number and a unit"]),
        ({"roll": {"target_file_size": "128"}}, ["pipelines.clicks.roll.target_file_size:", "'128'", "'128 MiB'"]),
        ({"bucket": {"type": "event_tme"}}, ["pipelines.clicks.bucket:", "'event_tme'", "did you mean 'event_time'?"]),
        ({"bucket": {"width": "1 h"}}, ["pipelines.clicks.bucket:", "no 'type'"]),
        ({"bucket": {"type": "event_time", "width": "0 s"}}, ["pipelines.clicks.bucket:", "longer than zero"]),
        ({"bucket": {"type": "event_time", "width": "1 h", "zone": "Mars"}}, ["clicks.bucket:", "'Mars' is unknown"]),
        ({"bucket": {"type": "event_time", "width": "1 h", "wide": 1}}, ["clicks.bucket:", "'wide'", "are width"]),
        ({"bucket": {"type": "no.such:Thing"}}, ["pipelines.clicks.bucket:", "no.such:Thing", "install the module"]),
        ({"bucket": {"type": "composite", "parts": "abc"}}, ["pipelines.clicks.bucket:", "'abc'; make it a list"]),
        ({"bucket": {"type": "composite", "parts": ["field"]}}, ["clicks.bucket:", "'field' is no mapping; write"]),
        ({"bucket": "hourly"}, ["pipelines.clicks.bucket:", "mapping of keys"]),
    ],
)  # fmt: skip
def test_a_fault_in_a_pipeline_is_named_with_its_place_and_mend(file, change, said):
    message = refusal(file, smallest_config(**change))
    assert all(part in message for part in [str(file), *said]), message


@pytest.mark.parametrize("key", ["kafka", "checkpoints", "pipelines"])
def test_a_missing_section_is_named(file, key):
    raw = smallest_config()
    del raw[key]
    assert f"  {key}: Field required" in refusal(file, raw)


@pytest.mark.parametrize("key", ["topics", "table", "event_time"])
def test_a_missing_key_is_named_with_its_place(file, key):
    raw = smallest_config()
    del raw["pipelines"]["clicks"][key]
    assert f"  pipelines.clicks.{key}: Field required" in refusal(file, raw)


def test_each_fault_has_a_line(file):
    message = refusal(file, smallest_config(commit={"max_delay": "soon"}, roll={"target_file_size": "big"}, topics=[]))
    assert len(message.splitlines()) == 4


# --- start ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("start", "read"),
    [
        ("earliest", "earliest"),
        ("latest", "latest"),
        ({"timestamp": "2026-11-20T05:00:00Z"}, {"timestamp": datetime(2026, 11, 20, 5, tzinfo=UTC)}),
        ({"timestamp": "2026-11-20T05:00:00+01:00"}, {"timestamp": datetime(2026, 11, 20, 4, tzinfo=UTC)}),
        ({"offsets": {"clicks": {0: 17, "1": "4"}}}, {"offsets": {"clicks": {0: 17, 1: 4}}}),
    ],
)
def test_a_pipeline_starts_where_it_is_told(file, start, read):
    assert loaded(file, smallest_config(start=start)).pipelines["clicks"].start == read


@pytest.mark.parametrize("when", ["2026-11-20T05:00:00Z", "2026-11-20T05:00:00", "2026-11-20T06:00:00+01:00"])
def test_a_timestamp_of_yaml_itself_is_of_utc_where_it_has_no_zone(file, when):
    text = yaml.safe_dump(smallest_config(start="WHEN"))
    start = loaded(file, text.replace("WHEN", f"{{timestamp: {when}}}")).pipelines["clicks"].start
    assert start == {"timestamp": datetime(2026, 11, 20, 5, tzinfo=UTC)}


@pytest.mark.parametrize(
    "start",
    [
        "newest", 5, None, {}, {"timestamp": "2026-11-31"}, {"timestamp": "yesterday"}, {"timestamp": 5},
        {"timestamp": "2026-11-20T05:00:00Z", "offsets": {}}, {"offsets": [1]}, {"offsets": {"clicks": 5}},
        {"offsets": {"clicks": {"zero": 1}}}, {"offsets": {"clicks": {0: "soon"}}}, {"offsets": {"clicks": {0: -3}}},
        {"offsets": {"clicks": {-1: 0}}}, {"offsets": {"clicks": {0: None}}},
    ],
    ids=str,
)  # fmt: skip
def test_a_start_that_cannot_be_is_refused(file, start):
    message = refusal(file, smallest_config(start=start))
    assert "  pipelines.clicks.start: " in message
    assert "2026-11-20T05:00:00" in message, "the fix"


# --- references -------------------------------------------------------------------------------------------------


def test_references_are_replaced_by_what_they_name(file, monkeypatch, tmp_path):
    (tmp_path / "where").write_text("broker:9092\n")
    monkeypatch.setenv("LAKE", "/mnt/lake")
    raw = smallest_config(table={"location": "${env:LAKE}/clicks"})
    raw["kafka"]["bootstrap_servers"] = f"${{file:{tmp_path / 'where'}}}"
    config = loaded(file, raw)
    assert config.kafka.bootstrap_servers == "broker:9092"
    assert config.pipelines["clicks"].table.location == "/mnt/lake/clicks"


def test_a_reference_to_nothing_is_named(file, monkeypatch, tmp_path):
    monkeypatch.delenv("NOWHERE", raising=False)
    raw = smallest_config(
        table={"location": "${env:NOWHERE}", "dead_letters": f"${{file:{tmp_path}/nothing}}"}, topics=["${env:NOWHERE}"]
    )
    message = refusal(file, raw)
    keys = "pipelines.clicks.table.location, pipelines.clicks.topics.0"
    assert f"  {keys}: the environment variable NOWHERE is not set. Set it." in message
    assert f"  pipelines.clicks.table.dead_letters: the file {tmp_path}/nothing cannot be read: No such file" in message


@pytest.mark.parametrize(
    "change",
    [
        {"commit": {"max_delay": "${env:PASSWORD}"}},
        {"roll": {"target_file_size": "${env:PASSWORD}"}},
        {"table": {"location": "${env:PASSWORD}"}},
        {"table": {"location": "${env:PASSWORD}://x"}},
        {"start": {"timestamp": "${env:PASSWORD}"}},
        {"bucket": {"type": "${env:PASSWORD}"}},
        {"commit": {"max_offsets": "${env:PASSWORD}"}},
        {"event_time": {"field": "at", "unit": "${env:PASSWORD}"}},
    ],
    ids=str,
)
def test_a_secret_in_the_wrong_place_is_not_echoed(file, monkeypatch, change):
    monkeypatch.setenv("PASSWORD", SECRET)
    assert "pipelines.clicks." in refusal(file, smallest_config(**change))  # which asserts that the secret is not in it


# --- locations --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("location", ["gs://lake/checkpoints", "az://lake/checkpoints"])
def test_checkpoints_lie_where_spark_writes_them(file, location):
    message = refusal(file, {**smallest_config(), "checkpoints": location})
    assert f"Spark's checkpoints cannot lie in {location}: Azure's connector was seen to read none" in message


def test_locations_of_one_account_are_all_written_in_one_form(file):
    named = "abfss://lake@account1.dfs.core.windows.net/views"
    raw = smallest_config(table={"location": "az://lake/clicks"})
    raw["pipelines"]["views"] = {**raw["pipelines"]["clicks"], "table": {"location": named}}
    raw["azure"] = {"account": "account1"}
    assert f"az://lake/clicks_dead_letters and {named}_dead_letters lie in one account, account1" in refusal(file, raw)
    raw["azure"] = {"account": "account2"}
    assert len(loaded(file, raw).pipelines) == 2


@pytest.mark.parametrize(
    ("first", "second"),
    [
        ({"location": "/lake/a"}, {"location": "/lake/a"}),
        ({"location": "gs://lake/a"}, {"location": "gs://lake/a/"}),
        ({"location": "/lake/a"}, {"location": "/lake/a/"}),
        ({"location": "/lake/a"}, {"location": "file:///lake/a"}),
        ({"location": "/lake/a"}, {"location": "/lake/b", "dead_letters": "/lake/a"}),
        ({"location": "/lake/a"}, {"location": "/lake/b", "dead_letters": "/lake/a_dead_letters"}),
        ({"location": "/lake/a_dead_letters"}, {"location": "/lake/a"}),
        ({"location": "/lake/a"}, {"location": "/lake/x/..//a"}),
        ({"location": "s3://bucket/a/"}, {"location": "s3://bucket/./a"}),
    ],
)
def test_two_pipelines_share_no_table(file, first, second):
    raw = smallest_config(table=first)
    raw["pipelines"]["views"] = {**raw["pipelines"]["clicks"], "table": second}
    message = refusal(file, raw)
    assert "pipelines 'clicks' and 'views'" in message
    assert "give each its own location" in message


def test_a_pipeline_keeps_its_dead_letters_apart(file):
    message = refusal(file, smallest_config(table={"location": "/lake/a", "dead_letters": "/lake/a/"}))
    assert "pipeline 'clicks'" in message
    assert "/lake/a; give each its own location" in message


# --- the file itself --------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("", "is empty or not a mapping; it needs the keys kafka, checkpoints, pipelines"),
        ("# nothing\n", "is empty or not a mapping"),
        ("- a\n- b\n", "is empty or not a mapping"),
        ("just words", "is empty or not a mapping"),
        ("kafka: {bootstrap_servers: [", "is not YAML"),
        ("kafka: \t x\n\tb: c", "is not YAML"),
        ("a: &a [*a]", "cannot be used"),
    ],
)
def test_a_file_that_is_no_configuration_is_named(file, text, said):
    message = refusal(file, text)
    assert message.startswith(str(file))
    assert said in message


def test_a_file_that_is_not_text_is_named(file):
    file.write_bytes(b"\xff\xfe\x00kafka")
    with pytest.raises(ConfigError, match="is not YAML") as refused:
        load(file)
    assert str(file) in str(refused.value)


def test_a_file_that_is_not_there_is_named(tmp_path):
    for path, why in ((tmp_path / "no.yaml", "No such file"), (tmp_path, "Is a directory")):
        with pytest.raises(ConfigError, match=why) as refused:
            load(path)
        assert str(path) in str(refused.value)
        assert refused.value.exit_code == 2


@pytest.mark.parametrize(
    ("rules", "problem"),
    [
        ([], "each rule but the last has `within`"),
        ([{"within": "1 h", "to": "reopen"}], "the last has none"),
        ([{"to": "reopen"}, {"to": "late_table"}], "each rule but the last has `within`"),
        (
            [{"within": "2 h", "to": "reopen"}, {"within": "1 h", "to": "late_table"}, {"to": "dead_letter"}],
            "`within` grows from rule to rule",
        ),
        ([{"within": "2 h", "to": "reopen"}, {"to": "reopen"}], "two rules say reopen"),
    ],
)
def test_tiers_of_late_rows_that_mean_nothing_are_refused(
    file: Path, rules: list[dict[str, str]], problem: str
) -> None:
    assert problem in refusal(file, smallest_config(seal={"late": rules}))
