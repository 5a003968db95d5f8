"""What `headrace size` measures of the sample: the processor time of the steps for a record, on this machine."""

import time
from dataclasses import replace
from pathlib import Path

import pytest

from headrace.writer.maintenance.local_pipeline import LocalPipeline, open_local_pipeline
from headrace.writer.preflight.capacity.sizing import StepCost, Traffic, rates, size
from headrace.writer.preflight.samples.processor_time import measure_steps
from tests.support.sample_records import EVENT, NOW, Schemas, config, records, value

WIDE = {**EVENT, "fields": [*EVENT["fields"], *({"name": f"text_{n}", "type": "string"} for n in range(60))]}
TRAFFIC = Traffic(
    events_per_s=100_000, events_how="given", event_bytes=202, columns=20, row_bytes=250, row_bytes_parquet=64,
    sampled_how="made up", bucket_shares=[0.9, 0.1], buckets_per_day=24,
)  # fmt: skip


def opened(root: Path, schema: dict) -> LocalPipeline:
    return open_local_pipeline("clicks", config(root), Schemas({1: schema}, [1]))


def sample(schema: dict, count: int = 1_000):
    texts = {field["name"]: f"{field['name']} of the record" for field in schema["fields"][3:]}
    return records([value(1, schema, {"id": n, "at": NOW, "note": None, **texts}) for n in range(count)])


def test_the_cost_of_a_record_is_that_of_a_task_with_many(tmp_path: Path) -> None:
    pipeline = opened(tmp_path, EVENT)
    batch = sample(EVENT)
    cost = measure_steps(pipeline, batch, NOW)
    began_s = time.process_time()
    pipeline.stage(batch, NOW, tmp_path / "staged", copies=200)
    mean_s = (time.process_time() - began_s) / 200_000
    assert cost.records >= 20_000
    # Other work on the machine disturbs both.
    assert mean_s / 4 < cost.seconds < mean_s * 4


def test_records_that_cost_more_are_measured_as_more(tmp_path: Path) -> None:
    narrow = measure_steps(opened(tmp_path, EVENT), sample(EVENT), NOW)
    wide = measure_steps(opened(tmp_path, WIDE), sample(WIDE), NOW)
    # A busy machine blurs both.
    assert wide.seconds > 1.5 * narrow.seconds


def test_the_files_of_a_measurement_are_removed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TMPDIR", str(tmp_path))
    monkeypatch.setattr("tempfile.tempdir", None)
    measure_steps(opened(tmp_path, EVENT), sample(EVENT, 100), NOW, 0.01)
    assert not list(tmp_path.glob("headrace-measured-*"))


@pytest.mark.parametrize(("reader", "beside_s"), [("native", 1.7e-7 + 202 * 9.4e-10), ("spark", 2.04e-6)])
def test_the_sample_decides_and_the_line_says_so(tmp_path: Path, reader: str, beside_s: float) -> None:
    settings = config(tmp_path).pipelines["clicks"]
    line = size(replace(TRAFFIC, steps=StepCost(4e-6, 160_000), reader=reader), settings, rates()).line(
        "events a processor second"
    )
    assert line.value == pytest.approx(1 / (4e-6 + beside_s))
    assert "4.00 µs of the sample's steps here, by 160,000 records" in line.how
    assert "by the bench" in line.how


def test_without_a_sample_the_rates_of_the_bench_count(tmp_path: Path) -> None:
    settings = config(tmp_path).pipelines["clicks"]
    line = size(TRAFFIC, settings, rates()).line("events a processor second")
    assert line.value == pytest.approx(440_000)
    assert "measured with 202 B (200B)" in line.how


def test_a_rate_that_is_given_goes_before_the_sample(tmp_path: Path) -> None:
    settings = config(tmp_path).pipelines["clicks"]
    sized = size(replace(TRAFFIC, steps=StepCost(4e-6, 160_000)), settings, rates(), 50_000)
    assert sized.line("events a processor second").how == "given by --rate"
