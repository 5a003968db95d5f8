"""L4 on a table whose last commit was not followed by its side files: a dead letter that waits proves an offset too."""

from pathlib import Path

import pytest

from recovery.checkpoints.walk_back import RebuiltOffsets, walk_back
from tests.carried import Died, Driver, log
from tests.fault.test_walk_back import forget
from tests.looking import event
from tests.unit.test_checkpoint import Run
from tests.unit.test_standing import Cluster
from writer.core.offsets import Source, TopicPartition


class OneTopic(Cluster):
    def sources(self, _topics: list[str]) -> list[Source]:
        return [("clicks", partition) for partition in range(len(self.held))]


def test_a_dead_letter_that_waits_is_not_read_again(tmp_path: Path) -> None:
    driver = Driver(tmp_path)
    driver.start()
    driver.carry([log({at: event(at) for at in range(5)})], {0: 5})
    with pytest.raises(Died):
        driver.carry([log({5: b"no Avro"})], {0: 6}, die="after_commit")
    Run(Path(driver.config.checkpoints)).started(0).planned(0, 5).committed(0).planned(1, 6)
    forget(Path(driver.lake))
    found = walk_back(driver.config, "clicks", OneTopic((0, 6), id_="uuid-1"))  # type: ignore[arg-type]
    assert isinstance(found, RebuiltOffsets), found
    assert found.offsets == {TopicPartition("clicks", 1, 0): 6}
    assert driver.side(driver.dead_letters).rows().count_rows() == 1
