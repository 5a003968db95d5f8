"""How partitions of two tables are matched where a topic's incarnations have one id: a log that was cut."""

from headrace.writer.audit.coverage import _partition_key
from headrace.writer.core.offsets import TopicPartition


def test_the_newest_incarnation_of_an_id_is_matched_with_the_newest() -> None:
    parts = [TopicPartition("clicks", number, 3) for number in (1, 2, 3)]
    assert [_partition_key(part, ["a", "b", "b"]) for part in parts] == [("a", 0, 3), ("b", 1, 3), ("b", 0, 3)]
    assert _partition_key(parts[0], ["b"]) == ("b", 0, 3)
