"""How often buckets are looked at while no commit comes."""

import pytest

from headrace.writer.driver.sealing.rounds import Seals
from headrace.writer.status.progress import Progress


class Task:
    """Rounds of tables."""

    def __init__(self, interval_s: float) -> None:
        self.interval_s = interval_s
        self.rounds = 0

    def once(self) -> None:
        self.rounds += 1


@pytest.mark.parametrize(
    ("pipelines", "of_tables_s", "seconds"), [(1, 0, 5), (10, 0, 5), (40, 0, 20), (40, 12, 20), (40, 125, 125)]
)
def test_many_pipelines_of_a_driver_share_the_looks_of_a_second(
    pipelines: int, of_tables_s: float, seconds: float
) -> None:
    task = Task(of_tables_s)
    seals = Seals(task, Progress("clicks"), pipelines)
    assert seals._run_round() == seconds
    assert task.rounds == 1
