"""The verb `bench`, the guard, and what they refuse before anything starts."""

import json
from datetime import timedelta

import pytest
import typer
from typer.testing import CliRunner

from headrace.bench import guard
from headrace.bench.cli import bench, number
from headrace.bench.contenders.contenders import CONTENDERS, configuration, parse_contenders
from headrace.bench.data.dataset import dataset
from headrace.bench.data.fill import block
from headrace.bench.figures import BenchFailed, Spread
from headrace.bench.job import Job
from headrace.bench.rounds import BenchDirectory, Setting
from headrace.writer.config.loader import load
from headrace.writer.core.errors import ConfigError


def refusal(*arguments: str) -> str:
    app = typer.Typer()
    app.command()(bench)
    with pytest.raises(ConfigError) as caught:
        CliRunner().invoke(app, arguments, catch_exceptions=False)
    return str(caught.value)


@pytest.mark.parametrize(
    ("text", "value"),
    [("2M", 2_000_000), ("500K", 500_000), ("1.5m", 1_500_000), ("10_000", 10_000), ("1,000,000", 1_000_000)],
)
def test_a_number_of_events_is_read(text, value):
    assert number(text) == value


@pytest.mark.parametrize("text", ["", "many", "2G", "-5", "M"])
def test_a_number_that_is_none_is_refused(text):
    with pytest.raises(ConfigError, match="is no number of events; write 500K, 2M"):
        number(text)


def test_options_that_cannot_be_are_refused_before_anything_starts(tmp_path):
    assert "no data set 'clicks'" in refusal("--data", "clicks")
    assert "name each set once" in refusal("--data", "200B,200B")
    assert "no contender of plain, limit reads what 200B-json is" in refusal(
        "--data", "200B,200B-json", "--contenders", "b,d"
    )
    assert "9,999 events are too few" in refusal("--events", "9999")
    assert "a (headrace), b (plain)" in refusal("--contenders", "a,z")
    assert "each once" in refusal("--contenders", "a,a")
    assert "name each number once, of 1 to 10,000" in refusal("--partitions", "4,20000")
    assert "name each number once" in refusal("--partitions", "4,4")
    assert "'many' is no number" in refusal("--partitions", "4,many")
    assert "has no warm part" in refusal("--partitions", "4,100", "--profile")
    assert "its directory must exist" in refusal("--json", str(tmp_path / "none" / "r.json"))
    assert "end it in .png, .svg, .pdf" in refusal("--plot", str(tmp_path / "r.gif"))
    (tmp_path / "file").touch()
    assert "is not empty" in refusal("--keep", str(tmp_path))


def test_contenders_run_in_the_order_in_which_they_are_named():
    assert [contender.name for contender in parse_contenders("d, a")] == ["limit", "headrace"]


def test_a_commit_is_a_quarter_of_the_events_and_no_more_than_in_life():
    contenders = list(CONTENDERS.values())
    assert Setting([dataset("200B")], 400_000, contenders, 1).batch_events == 100_016
    assert Setting([dataset("200B")], 40_000_000, contenders, 1).batch_events == 2_500_016


@pytest.mark.parametrize(
    ("events", "warm_from", "batch_events"),
    [(24_000_000, 0.67, 2_500_000), (8_000_000, 0.5, 2_000_000), (7_000_000, 0.67, 1_000_000), (40_000, 0.9, 2_000)],
)
def test_a_commit_is_smaller_where_the_warm_part_needs_three_marks(events, warm_from, batch_events):
    setting = Setting([dataset("200B")], events, [CONTENDERS["a"]], 1, warm_from=warm_from)
    assert setting.batch_events == batch_events + 16
    marks = [*range(batch_events, events, batch_events), events]
    assert sum(mark >= warm_from * events for mark in marks) >= 3


def test_a_warm_part_that_no_marks_fit_in_is_refused():
    with pytest.raises(ConfigError, match=r"warm from 0\.99 of the events leaves too few"):
        Setting([dataset("200B")], 40_000, [CONTENDERS["a"]], 1, warm_from=0.99)


def test_partitions_are_compared_on_a_sparse_and_a_dense_topic_of_each_number():
    setting = Setting([dataset("200B")], 4_000_000, [CONTENDERS["a"]], 1, partitions=[4, 1_000])
    assert [(t.name, t.partitions, t.events, t.batch_events) for t in setting.topics] == [
        ("sparse-4", 4, 800, 816), ("dense-4", 4, 4_000_000, 2_500_016),
        ("sparse-1000", 1_000, 200_000, 200_016), ("dense-1000", 1_000, 4_000_000, 2_500_016),
    ]  # fmt: skip


def test_json_has_topics_and_names_of_its_own_and_only_readers_of_json():
    sets = [dataset("200B"), dataset("200B-json")]
    setting = Setting(sets, 400_000, parse_contenders("a,b,d"), 1)
    assert [(topic.name, topic.data.name) for topic in setting.topics] == [
        ("events", "200B"),
        ("events-200B-json", "200B-json"),
    ]
    names = [[setting.label(contender, data) for contender in setting.contenders_on(data)] for data in sets]
    assert names == [["headrace", "plain", "limit"], ["headrace 200B-json"]]
    compared = Setting(sets, 4_000_000, [CONTENDERS["a"]], 1, partitions=[4])
    assert [topic.name for topic in compared.topics] == [
        "sparse-4", "dense-4", "sparse-4-200B-json", "dense-4-200B-json"
    ]  # fmt: skip


def test_the_writer_of_json_declares_the_columns_and_needs_no_registry(tmp_path):
    declared = dataset("nested-json").declared
    job = Job("broker:1", "http://registry", "events", 0, "{}", 100, 50, "event_time", str(tmp_path), declared=declared)
    path = tmp_path / "headrace.yaml"
    path.write_text(configuration(job))
    pipeline = load(path).pipelines["bench"]
    assert pipeline.formats == ["json"]
    assert pipeline.columns.declared == declared
    assert "registry" not in path.read_text()


def test_each_partition_of_a_topic_gets_as_many_events():
    assert (block(200_000, 1_000), block(800, 4), block(10, 4), block(10_000_000, 4)) == (200, 200, 3, 20_000)


def test_the_writer_that_waits_differs_in_nothing_else(tmp_path):
    job = Job("broker:1", "http://registry", "events", 1, "{}", 100, 50, "event_time", str(tmp_path))
    found = {}
    for letter in "fe":
        CONTENDERS[letter].command(job)
        found[letter] = load(tmp_path / "headrace.yaml")
    assert found["f"].kafka.fetch_max_wait < found["e"].kafka.fetch_max_wait == timedelta(milliseconds=500)
    kafka = found["e"].kafka.model_copy(update={"fetch_max_wait": found["f"].kafka.fetch_max_wait})
    assert found["e"].model_copy(update={"kafka": kafka}) == found["f"]


def test_the_writer_of_iceberg_differs_in_the_format_alone(tmp_path):
    job = Job("broker:1", "http://registry", "events", 1, "{}", 100, 50, "event_time", str(tmp_path))
    found = {}
    for letter in "aj":
        CONTENDERS[letter].command(job)
        found[letter] = load(tmp_path / "headrace.yaml")
    assert str(found["j"].catalog_place("bench", str(job.table))) == "headrace.table"
    readers = found["j"].pipelines["bench"].table.readers  # Presto is not among them
    table = found["a"].pipelines["bench"].table.model_copy(update={"format": "iceberg", "readers": readers})
    assert found["j"].pipelines["bench"] == found["a"].pipelines["bench"].model_copy(update={"table": table})


def test_the_writer_gets_a_configuration_that_it_takes(tmp_path):
    job = Job("broker:1", "http://registry", "events", 1, "{}", 100, 50, "event_time", str(tmp_path))
    path = tmp_path / "headrace.yaml"
    path.write_text(configuration(job))
    settings = load(path)
    assert settings.pipelines["bench"].commit.max_offsets == 50
    assert settings.spark.master == "local[2]"


def test_a_folder_with_a_pattern_in_its_name_is_refused(tmp_path):
    with pytest.raises(ConfigError, match=r"holds \*"):
        BenchDirectory(tmp_path / "a*b")


@pytest.mark.parametrize("now", [0.51, 0.60, 0.90])
def test_the_guard_is_content_with_noise_and_with_gain(now):
    assert "kept is 0.600" in guard.judge(Spread(now, now - 0.01, now + 0.01), Spread(0.6, 0.55, 0.65))


def test_the_guard_fails_when_more_than_fifteen_percent_is_lost():
    with pytest.raises(BenchFailed, match=r"carries 0.500 of.*-17%, more than 15% is lost") as caught:
        guard.judge(Spread(0.5, 0.4, 0.6), Spread(0.6, 0.55, 0.65))
    assert caught.value.exit_code == 1


def test_the_kept_baseline_is_read():
    kept = guard.load(guard.BASELINE)
    assert kept.repeats == 3
    assert 0.1 < kept.headrace_by_limit.median < 1.5
    assert Setting([dataset(kept.data)], kept.events, [CONTENDERS["a"]], kept.repeats)


@pytest.mark.parametrize("text", ["", "{}", json.dumps({"data": "200B", "headrace_by_limit": 3})])
def test_a_baseline_that_is_none_is_refused(tmp_path, text):
    path = tmp_path / "baseline.json"
    path.write_text(text)
    with pytest.raises(ConfigError, match=r"is no baseline.*--record"):
        guard.load(path)
