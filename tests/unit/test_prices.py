"""Dollars are reckoned from a person's own prices, line by line; a file that is none is said by a sentence."""

from dataclasses import replace
from datetime import timedelta
from pathlib import Path

import pytest
from hypothesis import given, strategies as st

from headrace.writer.core.errors import ConfigError
from headrace.writer.output.report import json_value
from headrace.writer.preflight.capacity import sizing
from headrace.writer.preflight.capacity.prices import PRICED, Prices, price_steps, read_prices
from headrace.writer.preflight.capacity.sizing import MeasuredCost, Rates, Traffic, size
from tests.support.sample_records import config

ROOT = Path(__file__).parents[2]
PRICES = Prices(storage_gb_month=0.02, put_list_per_1000=0.01, get_per_1000=0.001)
RATES = Rates("a test", "no machine", 1.0, [MeasuredCost("small", 200, 20, 100_000)])
TRAFFIC = Traffic(
    events_per_s=1_000, events_how="given", event_bytes=200, columns=20, row_bytes=250, row_bytes_parquet=64,
    sampled_how="made up", bucket_shares=[1.0], buckets_per_day=24,
)  # fmt: skip


@pytest.fixture(scope="module")
def settings(tmp_path_factory):
    return config(tmp_path_factory.mktemp("lake")).pipelines["clicks"]


STORES = {
    "s3": "s3://lake/clicks",
    "gs": "gs://lake/clicks",
    "az": "az://lake/clicks",
    "abfss": "abfss://lake@shop1.dfs.core.windows.net/clicks",
}


def in_format(settings, table_format, location="/lake/clicks"):
    table = settings.table.model_copy(update={"format": table_format, "location": location})
    return settings.model_copy(update={"table": table})


def test_the_dollars_by_hand():
    lines = {name: value for name, value, *_ in price_steps(20_000, 100_000, 2e12, PRICES)}
    assert lines == pytest.approx(
        {
            "requests a day": 120_000,
            "requests cost a day": 20 * 0.01 + 100 * 0.001,
            "a TB written": 0.3 / 2,
            "a TB stored for a month": 20,
            "a month's data, each month": 30 * 2 * 20,
        }
    )


@given(*[st.floats(0, 1e9)] * 2, st.floats(1, 1e16), *[st.floats(0, 1e3)] * 3)
def test_dollars_are_in_proportion_to_prices_and_never_below_zero(writes, reads, size_bytes, storage, put, get):
    prices = Prices(storage_gb_month=storage, put_list_per_1000=put, get_per_1000=get)
    twice = Prices(storage_gb_month=2 * storage, put_list_per_1000=2 * put, get_per_1000=2 * get)
    pairs = zip(
        price_steps(writes, reads, size_bytes, prices), price_steps(writes, reads, size_bytes, twice), strict=True
    )
    for (name, once, unit, _), (_, double, *_) in pairs:
        assert once >= 0
        assert double == pytest.approx(2 * once if unit == "dollars" else once), name


def test_a_sizing_has_the_lines_only_where_prices_were_given(settings):
    without = size(TRAFFIC, settings, RATES)
    priced = size(TRAFFIC, settings, RATES, prices=PRICES)
    assert [line for line in priced.lines if line.group != "Prices"] == without.lines
    requests = priced.value("requests a day")
    assert requests == without.value("writes a day") + without.value("reads a day")
    document = json_value(priced)["lines"]
    assert {line["unit"] for line in document if line["group"] == "Prices"} == {"", "dollars"}
    total = {line.name: line.value for line in sizing.add_up([priced, priced])}
    assert {name: total[name] for name in PRICED} == pytest.approx({name: 2 * priced.value(name) for name in PRICED})
    assert not set(PRICED) & {line.name for line in sizing.add_up([without, without])}


@pytest.mark.parametrize(
    ("location", "table_format", "writes", "reads"),
    [
        ("/lake/clicks", "delta", 1 + 3 + 2 / 50, 21),
        ("/lake/clicks", "parquet", 2 + 4 + 2 / 50, 21),
        (STORES["s3"], "iceberg", 1 + 9 + 2 / 50, 30),
        (STORES["gs"], "delta", 1 + 3 + 2 / 50, 21),
        (STORES["az"], "parquet", 2 + 4 + 2 / 50, 21),
        (STORES["gs"], "iceberg", 1 + 8 + 2 / 50, 29),
        (STORES["abfss"], "iceberg", 1 + 8 + 2 / 50, 29),
    ],
)
def test_requests_of_a_commit_are_those_of_its_format_and_store(settings, location, table_format, writes, reads):
    found = size(replace(TRAFFIC, events_per_s=100), in_format(settings, table_format, location), RATES)
    assert found.value("commits a day") == 144
    assert found.value("files in a commit") == 1
    assert found.value("writes a day") == pytest.approx(144 * writes)
    assert found.value("reads a day") == pytest.approx(144 * reads)


@pytest.mark.parametrize(
    ("location", "beside_parts"),
    [("/lake/clicks", 2), *((STORES[name], 2) for name in ("s3", "gs")), (STORES["az"], 1)],
)
def test_a_large_file_counts_as_its_parts(settings, location, beside_parts):
    # 600,000 rows of 64 B are 36.6 MiB: 4 parts, and what begins and ends the upload.
    found = size(TRAFFIC, in_format(settings, "delta", location), RATES)
    assert (found.value("commits a day"), found.value("files in a commit")) == (144, 1)
    assert found.value("writes a day") == pytest.approx(144 * (4 + beside_parts + 3 + 2 / 50))
    assert f"else its parts and {beside_parts})" in found.line("writes a day").how
    assert settings.commit.max_delay == timedelta(minutes=10)


@given(
    events_per_s=st.floats(1, 1e5),
    row_bytes=st.floats(10, 2_000),
    table_format=st.sampled_from(["delta", "parquet", "iceberg"]),
)
def test_a_store_differs_by_what_begins_an_upload_and_by_what_iceberg_looks_at(
    settings, events_per_s, row_bytes, table_format
):
    traffic = replace(TRAFFIC, events_per_s=events_per_s, row_bytes_parquet=row_bytes)
    found = {
        name: size(traffic, in_format(settings, table_format, location), RATES, prices=PRICES)
        for name, location in STORES.items()
    }
    assert found["az"].lines == found["abfss"].lines
    commits = found["s3"].value("commits a day")
    files = found["s3"].value("files a day")
    fewer = commits * (table_format == "iceberg")
    google = found["gs"].value("writes a day")
    assert google == pytest.approx(found["s3"].value("writes a day") - fewer)
    assert google - files - 1e-6 <= found["az"].value("writes a day") <= google
    assert found["az"].value("reads a day") == found["gs"].value("reads a day")
    assert found["gs"].value("reads a day") == pytest.approx(found["s3"].value("reads a day") - fewer)
    for sizing_at in found.values():
        terabytes = sizing_at.value("lake a day") * 2**30 / 1e12
        dollars = (sizing_at.value("writes a day") * 0.01 + sizing_at.value("reads a day") * 0.001) / 1_000
        assert sizing_at.value("a TB written") == pytest.approx(dollars / terabytes)


def test_the_example_of_the_docs_is_read():
    assert read_prices(ROOT / "docs" / "examples" / "prices.yaml") == PRICES


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("", "file: Input should be a mapping of keys to values"),
        ("storage: 1", "unknown key 'storage'; did you mean 'storage_gb_month'?"),
        ("storage_gb_month: 0.02", "put_list_per_1000: "),
        ("storage_gb_month: -1\nput_list_per_1000: 1\nget_per_1000: 1", "storage_gb_month: "),
        ("storage_gb_month: '0.02'\nput_list_per_1000: 1\nget_per_1000: 1", "storage_gb_month: "),
        ("storage_gb_month: true\nput_list_per_1000: 1\nget_per_1000: 1", "storage_gb_month: "),
        ("storage_gb_month: .nan\nput_list_per_1000: 1\nget_per_1000: 1", "storage_gb_month: "),
        ("storage_gb_month: [", "is no YAML. Write numbers, such as: storage_gb_month: 0.02"),
    ],
)
def test_a_file_that_has_no_prices_is_refused_by_a_sentence(tmp_path, text, said):
    path = tmp_path / "prices.yaml"
    path.write_text(text)
    with pytest.raises(ConfigError) as refused:
        read_prices(path)
    assert str(refused.value).startswith(f"--prices {path} is no ")
    assert said in str(refused.value)
    assert str(refused.value).endswith(".")


def test_a_file_that_is_not_there_is_named(tmp_path):
    path = tmp_path / "none.yaml"
    with pytest.raises(ConfigError, match=r"--prices .*none.yaml cannot be read: No such file or directory\. Give"):
        read_prices(path)
