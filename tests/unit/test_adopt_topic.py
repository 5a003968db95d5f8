"""What an adoption makes of topics that hold the same records under other ids, names or offsets."""

import pytest

from headrace.writer.clients.kafka import Topic
from headrace.writer.core.errors import ConfigError
from headrace.writer.core.offsets import TopicPartition
from headrace.writer.offsets.start_decision import LogRange, incarnation_number, incarnations
from headrace.writer.offsets.topic_adoption_plan import AdoptionRequest, find_topic_moves, plan_adoption, to_json

KNOWN = {"clicks": ["a", "b"], "installs": ["c"]}
FRONTIER = {
    TopicPartition("clicks", 1, 0): 9,
    TopicPartition("clicks", 2, 0): 50,
    TopicPartition("clicks", 2, 1): 60,
    TopicPartition("installs", 1, 0): 7,
}


def adopted(topics, held, asked=None, same=None):
    asked = asked or AdoptionRequest()
    found = find_topic_moves(KNOWN, topics, asked)
    return plan_adoption(found, KNOWN, FRONTIER, held, same or {}, asked)


def topic(name, id_, partitions=2):
    return {name: Topic(name, id_, partitions)}


def logs(name, *held):
    return {(name, partition): LogRange(*found) for partition, found in enumerate(held)}


def test_another_id_with_the_same_offsets_goes_on_as_the_same_incarnation():
    one = adopted(topic("clicks", "z"), logs("clicks", (0, 55), (20, 60)), same={("clicks", 0): True})
    assert one.incarnations == {"clicks": ["a", "z"], "installs": ["c"]}
    assert one.starts == {}
    assert [(line.part, line.start, line.same_records) for line in one.partitions] == [
        (TopicPartition("clicks", 2, 0), 50, True), (TopicPartition("clicks", 2, 1), 60, None),
    ]  # fmt: skip
    assert to_json(one) == {
        "topics": [
            {
                "from": {"topic": "clicks", "incarnation": 2, "id": "b"},
                "to": {"topic": "clicks", "incarnation": 2, "id": "z"}, "offsets": "kept",
            }
        ],
        "starts": [],
    }  # fmt: skip


def test_another_name_begins_where_the_table_ends():
    topics = topic("west.clicks", "z", 3)
    one = adopted(topics, logs("west.clicks", (0, 55), (0, 60), (0, 4)), AdoptionRequest({"clicks": "west.clicks"}))
    assert one.incarnations == {**KNOWN, "west.clicks": ["z"]}
    assert one.starts == {
        TopicPartition("west.clicks", 1, 0): 50, TopicPartition("west.clicks", 1, 1): 60,
        TopicPartition("west.clicks", 1, 2): 0,
    }  # fmt: skip
    assert [line.table_end for line in one.partitions] == [50, 60, None]


def test_given_offsets_begin_a_further_incarnation():
    asked = AdoptionRequest(offsets={("clicks", 0): 12, ("clicks", 1): 15})
    one = adopted(topic("clicks", "z"), logs("clicks", (0, 20), (10, 15)), asked)
    assert one.incarnations["clicks"] == ["a", "b", "z"]
    assert one.starts == {TopicPartition("clicks", 3, 0): 12, TopicPartition("clicks", 3, 1): 15}


def test_a_log_that_was_cut_back_goes_on_under_its_own_id_as_a_further_incarnation():
    asked = AdoptionRequest(offsets={("clicks", 0): 40, ("clicks", 1): 60})
    one = adopted(topic("clicks", "b"), logs("clicks", (0, 40), (0, 60)), asked)
    assert one.incarnations["clicks"] == ["a", "b", "b"]
    assert one.starts == {TopicPartition("clicks", 3, 0): 40, TopicPartition("clicks", 3, 1): 60}
    assert incarnations(one.incarnations, {"clicks": "b"}) == one.incarnations
    assert incarnation_number(one.incarnations["clicks"], "b") == 3


@pytest.mark.parametrize("known", ["a", "b"])
def test_an_id_that_the_table_knows_needs_no_adoption(known):
    one = adopted(topic("clicks", known), {})
    assert (one.moves, one.partitions, one.starts, one.incarnations) == ([], [], {}, KNOWN)


def test_a_topic_that_the_table_never_saw_is_new_and_not_adopted():
    assert find_topic_moves(KNOWN, topic("views", "z"), AdoptionRequest()) == []


def refused(match, *args, **settings):
    with pytest.raises(ConfigError, match=match):
        adopted(*args, **settings)


def test_logs_that_cannot_hold_the_same_records_are_refused():
    topics = topic("clicks", "z")
    refused("clicks/0 ends at 49, the table at 50: its records have other", topics, logs("clicks", (0, 49), (0, 60)))
    refused(
        r"the records of clicks/1 have other timestamps than the table's rows of clicks/1",
        topics, logs("clicks", (0, 55), (0, 60)), same={("clicks", 1): False},
    )  # fmt: skip
    refused("has 1 partitions, but the table has records of clicks/1", topic("clicks", "z", 1), logs("clicks", (0, 55)))


def test_offsets_are_wanted_for_every_partition_and_must_be_in_the_log():
    topics, held = topic("clicks", "z"), logs("clicks", (10, 20), (10, 15))
    refused("no offset is given for clicks/1", topics, held, AdoptionRequest(offsets={("clicks", 0): 12}))
    for outside in (9, 21):
        refused(
            rf"--offsets clicks:0={outside}: the log holds \[10, 20\)",
            topics, held, AdoptionRequest(offsets={("clicks", 0): outside, ("clicks", 1): 15}),
        )  # fmt: skip
    refused("reads no such partition", topics, held, AdoptionRequest(offsets={("clicks", 2): 12}))


def test_a_map_that_does_not_apply_is_refused():
    for asked in ({"installs": "clicks"}, {"clicks": "clicks"}):
        with pytest.raises(ConfigError, match=r"--map \w+=clicks does not apply: .* 'clicks' by its id already"):
            find_topic_moves(KNOWN, topic("clicks", "b"), AdoptionRequest(asked))
    assert find_topic_moves(KNOWN, topic("clicks", "b"), AdoptionRequest()) == []


def test_names_that_are_not_known_are_refused():
    topics = topic("clicks", "z")
    refused(
        "the table knows no topic 'click'; it knows clicks, installs", topics, {}, AdoptionRequest({"click": "clicks"})
    )
    refused(
        "the pipeline reads no topic 'west.clicks'; it reads clicks",
        topics,
        {},
        AdoptionRequest({"clicks": "west.clicks"}),
    )
    refused("two topics cannot go on as one", topics, {}, AdoptionRequest({"clicks": "clicks", "installs": "clicks"}))
