"""Known secrets in every type of column stand nowhere, whenever the process dies; and a search that would find them."""

import gzip
import io
from pathlib import Path

import fastavro
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from tests.support.canaries import (
    BY_RECORD,
    NATIVE,
    NEEDLES,
    SHOWN,
    STEM,
    TEXTS,
    Hit,
    files,
    forms,
    search,
    spread,
    unpack,
)
from tests.support.canary_table import keys, open_driver, run_life_in_process

pytestmark = [pytest.mark.slow, pytest.mark.timeout(600)]
FORMATS = ["delta", "parquet", "iceberg"]
# One after the other: rows spilled and a file begun; all staged; committed, without dead letters and raw records; late
# rows staged; sealed, without a manifest; rows sorted on disk; merged; sorted for a reprocess; a deletion staged.
POINTS = (
    "in_stage:3", "in_report:1", "after_commit:1", "before_commit:1", "before_manifest:1", "in_sort:2", "in_rewrite:1",
    "in_sort:7", "before_commit:1",
)  # fmt: skip


def found(root: Path, said: bytes) -> set[Hit]:
    """Search all below a folder, the keyring aside, and what a process has said."""
    return search([("said", said), *files(root, ["keys.json"])], keys(root))


@pytest.mark.parametrize("policy", ["hash", "encrypt", "drop"])
@pytest.mark.parametrize("form", FORMATS)
def test_no_byte_of_a_table_and_beside_it_tells_a_canary(tmp_path: Path, form: str, policy: str) -> None:
    assert found(tmp_path, run_life_in_process(tmp_path, form, policy)) == set()


@pytest.mark.parametrize("form", FORMATS)
def test_no_byte_tells_a_canary_whenever_the_process_is_killed(tmp_path: Path, form: str) -> None:
    for point in POINTS:
        assert found(tmp_path, run_life_in_process(tmp_path, form, "mixed", point)) == set(), point
    left = {path.name.split("-")[1] for path in (tmp_path / "scratch").glob("headrace-*")}
    assert left >= {"stage", "rewrite", "reprocess"}, "there is something to vacuum"
    assert found(tmp_path, run_life_in_process(tmp_path, form, "mixed")) == set()
    assert not any((tmp_path / "scratch").glob("headrace-*/*.arrow"))
    assert not any((tmp_path / "scratch").glob("headrace-re*"))


def test_without_policies_the_search_finds_canaries_wherever_rows_are(tmp_path: Path) -> None:
    """So each place is one that is searched, and each type of a field has a canary that can be found."""

    def places(point: str = "") -> set[str]:
        hits = found(tmp_path, run_life_in_process(tmp_path, "delta", "clear", point))
        return {"/".join(hit.name.split("/")[:3]) for hit in hits}

    begun = places("in_stage:2")
    assert any(path.startswith("scratch/headrace-stage-") and "run-" in path for path in begun), begun
    assert any(path.startswith("lake/clicks/hour=") for path in begun), begun
    assert any("lake/raw/day=" in path for path in places("in_stage:4"))
    assert any(location.startswith("scratch/headrace-rewrite-") for location in places("in_sort:2"))
    hits = found(tmp_path, run_life_in_process(tmp_path, "delta", "clear"))
    for folder in ("clicks/hour=", "clicks_late/hour=", "clicks_dead_letters/", "raw/day=", "clicks/_delta_log"):
        assert any(hit.name.startswith(f"lake/{folder}") for hit in hits), folder
    assert {repr(text) for text in SHOWN} <= {hit.secret for hit in hits if hit.name.startswith("lake/clicks/")}
    rows = open_driver(tmp_path, "delta", "clear").table.rows().to_table()
    columns = {name: spread(rows[name].to_pylist()) for name in (*NATIVE, *BY_RECORD)}
    assert {hit.name for hit in search(columns.items())} == columns.keys() - {"flag"}, "a boolean is no canary"


def test_the_search_finds_each_form_of_a_canary() -> None:
    for text in (*TEXTS, "ab"):
        for form in forms(text.encode(), text=True):
            assert search([("here", b"x" + form + b"x")]) or text == "ab"
    assert search([("here", b"nothing of this")]) == set()
    assert len(NEEDLES) > len(TEXTS) * 10


def test_the_search_opens_what_is_compressed_or_encoded(tmp_path: Path) -> None:
    """Also files that a process left half written."""
    rows = pa.table({"a": [f"{STEM}-{'x' * 40}"] * 50, "n": [7_316_452_809_117_364] * 50})
    parquet, arrow, avro = io.BytesIO(), io.BytesIO(), io.BytesIO()
    encoding = {"n": "DELTA_BINARY_PACKED"}
    pq.write_table(rows, parquet, compression="zstd", column_encoding=encoding, use_dictionary=False)
    with pa.ipc.new_file(arrow, rows.schema, options=pa.ipc.IpcWriteOptions(compression="lz4")) as sink:
        sink.write_table(rows)
    kind = fastavro.parse_schema({"type": "record", "name": "R", "fields": [{"name": "b", "type": "bytes"}]})
    fastavro.writer(avro, kind, [{"b": STEM.encode()}] * 50, codec="deflate")
    zstd = pa.BufferOutputStream()
    with pa.CompressedOutputStream(zstd, "zstd") as sink:
        sink.write(b"{}" * 100 + STEM.encode() * 100)
    for content in (
        parquet.getvalue(), parquet.getvalue()[:-20], arrow.getvalue(), arrow.getvalue()[:-100], avro.getvalue(),
        zstd.getvalue().to_pybytes(), gzip.compress(STEM.encode() * 100),
    ):  # fmt: skip
        assert repr(STEM) in {hit.secret for hit in search([("in", inside) for inside in unpack(content)])}
    numbers = {hit.secret for hit in search([("in", inside) for inside in unpack(parquet.getvalue())])}
    assert repr("7316452809117364") in numbers
    (tmp_path / f"hour={STEM}").mkdir()
    (tmp_path / f"hour={STEM}" / "empty").touch()
    assert search(files(tmp_path)), "a name of a file tells, too"
