"""Shadow and promote of tables on S3, and of Iceberg tables there that Glue knows: moto."""

from pathlib import Path
from uuid import uuid4

import pytest

from tests.servers.objects import ObjectServer
from tests.support.promotion import check_there_and_back
from tests.support.shadow_lake import Lake, run_shadow, writer_fixture  # noqa: F401 - a fixture

KINDS = ["delta", "parquet", "glue"]


@pytest.fixture(params=KINDS)
def lake(request: pytest.FixtureRequest, tmp_path: Path, on_s3: ObjectServer) -> Lake:
    """A lake in a bucket of its own."""
    glue = {"type": "glue", "namespace": f"n{uuid4().hex[:12]}", "options": {"glue.endpoint": on_s3.url}}
    form, sections = ("iceberg", {"catalog": glue}) if request.param == "glue" else (request.param, None)
    return Lake(tmp_path, form, home=on_s3.bucket(), sections=sections)


def test_a_shadow_takes_the_place_of_the_first_and_gives_it_back(
    lake: Lake, writer: list[int], monkeypatch: pytest.MonkeyPatch
) -> None:
    check_there_and_back(lake, writer, monkeypatch)
