"""How many processes run the slow tests on a machine."""

import pytest

from tests.support.workers import GIB, count_waiting


@pytest.mark.parametrize(
    ("cores", "gib", "workers"), [(2, 24, 4), (2, 8, 3), (4, 16, 6), (4, 64, 8), (1, 64, 2), (2, 1, 2)]
)
def test_workers_keep_the_cores_busy_and_fit_into_memory(cores: int, gib: int, workers: int) -> None:
    assert count_waiting(cores, gib * GIB) == workers
