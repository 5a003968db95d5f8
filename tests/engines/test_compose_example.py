"""The page of the compose example walked to its end: MinIO checks who asks, Trino answers with the SQL of the page."""

import sys
from pathlib import Path

import pytest

from tests.servers import compose_images, network_hosts
from tests.servers.objects import MINIO, program_path
from tests.support.compose_example import RUN, common_programs, walk

pytestmark = [pytest.mark.slow, pytest.mark.engines, pytest.mark.timeout(1800)]
SENT = 10_000


def test_the_page_of_the_compose_example_leads_to_trinos_answer(tmp_path: Path) -> None:
    if missing := network_hosts.missing():
        pytest.skip(f"NOT RUN: {missing}")
    images = tmp_path / "images"
    programs = common_programs(images) | {
        "quay.io/minio/minio": compose_images.minio(images / "minio", program_path(MINIO, "minio")),
        "trinodb/trino": compose_images.trino_server(images / "trino", Path(sys.executable), sys.path),
    }
    with walk(tmp_path, programs) as walker:
        answers = []
        for line in walker.lines():
            said = walker.run(line)
            if "SELECT" in line:
                answers.append([tuple(map(str.strip, row.split(","))) for row in said.splitlines()])
            if line.startswith(RUN):
                walker.await_rows(2 * SENT)
        (counts, hours) = answers
        assert counts == [(f'"{SENT}"', f'"{SENT}"')]
        assert sum(int(count.strip('"')) for _, count in hours) == 2 * SENT
        assert walker.composition.running() == []
