"""Which topics a pipeline reads by a pattern, and what a start says of those that went or are too many."""

from collections.abc import Collection
from datetime import UTC, datetime
from typing import Any

import pytest

from headrace.writer.clients.kafka import Cluster, Topic, choose_topics
from headrace.writer.clients.notifications import Event
from headrace.writer.config.sections.topic_selection import TopicSelection
from headrace.writer.core.errors import ConfigError, TopicMissing
from headrace.writer.driver.start.topic_choice import topics_of_start
from headrace.writer.status.model import Logs, Sample
from headrace.writer.status.progress import Progress

THERE = ["app.click", "app.view", "app_x", "billing", "__consumer_offsets", "__app.hidden"]


def selection(given: Any) -> TopicSelection:
    return TopicSelection.model_validate(given)


@pytest.mark.parametrize(
    ("given", "read"),
    [
        (["billing"], ["billing"]),
        ({"names": ["billing", "app.view"]}, ["billing", "app.view"]),
        ({"pattern": r"app\..*"}, ["app.click", "app.view"]),
        ({"pattern": "app"}, []),  # the whole name
        ({"pattern": ".*"}, ["app.click", "app.view", "app_x", "billing"]),
        ({"pattern": "app.*", "except": [r".*\.click", "app_x"]}, ["app.view"]),
        ({"names": ["app.click", "gone"], "pattern": r"app\..*"}, ["app.click", "gone", "app.view"]),
        ({"names": ["app.click"], "pattern": r"app\..*", "except": [r"app\.click"]}, ["app.click", "app.view"]),
    ],
)
def test_names_come_first_then_what_matches_as_a_whole(given: Any, read: list[str]) -> None:
    chosen = selection(given)
    assert chosen.among(THERE) == read
    assert [topic for topic in THERE if chosen.includes(topic)] == [topic for topic in THERE if topic in read]


def test_of_too_many_those_that_are_read_already_stay() -> None:
    chosen = selection({"names": ["billing"], "pattern": "app.*", "max": 2})
    assert chosen.choose(THERE) == (["billing", "app.click"], ["app.view", "app_x"])
    assert chosen.choose(THERE, earlier=["app_x"]) == (["billing", "app_x"], ["app.click", "app.view"])


def test_only_one_named_topic_need_not_stand_with_each_record() -> None:
    assert selection(["a"]).only == "a"
    assert selection(["a", "b"]).only is None
    assert selection({"names": ["a"], "pattern": "b"}).only is None


def test_a_topic_selection_is_written_as_it_is_read() -> None:
    chosen = selection({"names": ["a"], "pattern": "b.*", "except": ["bc"]})
    assert selection(chosen.model_dump()) == chosen
    assert str(chosen) == "a, topics like b.*"


class Asked(Cluster):
    def __init__(self, there: Collection[str]) -> None:
        self.there, self.asked = there, 0

    def topic_names(self) -> list[str]:
        self.asked += 1
        return list(self.there)

    def topics(self, names: Any) -> dict[str, Topic]:
        return {name: Topic(name, "id", 1) for name in names}


class Table:
    """Of the table, only what a choice needs."""

    pipeline = "clicks"

    def __init__(self, known: Collection[str]) -> None:
        self._known = known

    def exists(self) -> bool:
        return bool(self._known)

    def snapshot(self) -> "Table":
        return self

    def incarnations(self) -> dict[str, list[str]]:
        return {topic: ["id"] for topic in self._known}


def started(chosen: TopicSelection, known: Collection[str], before: dict[str, int]) -> tuple[list[str], list[Event]]:
    said: list[Event] = []
    table: Any = Table(known)
    progress = Progress("events")
    progress.record_start(
        epoch=1, run=1, frontier={}, limits={}, buckets=[], recent=[], incarnations=dict.fromkeys(before, 1)
    )
    ends = {(topic, 0): unread for topic, unread in before.items()}
    progress.set(frontier=dict.fromkeys(ends, 0), logs=Logs((Sample(datetime.now(UTC), ends),)))
    return topics_of_start(chosen, Asked(THERE), table, progress, said.append), said


def test_named_topics_are_not_looked_for() -> None:
    cluster = Asked([])
    assert choose_topics(cluster, selection(["a"])) == (["a"], [])
    assert cluster.asked == 0


def test_a_pattern_that_nothing_matches_is_a_sentence() -> None:
    with pytest.raises(TopicMissing, match=r"no topic of the cluster matches topics.pattern 'xyz'; create one"):
        choose_topics(Asked(THERE), selection({"pattern": "xyz"}))


def test_a_first_start_refuses_more_than_max_and_a_later_one_says_what_it_leaves() -> None:
    chosen = selection({"pattern": r"app.*", "max": 1})
    with pytest.raises(ConfigError, match=r"2 topics more than topics.max 1: app.view, app_x. Raise topics.max"):
        started(chosen, [], {})
    names, said = started(chosen, ["app_x"], {})
    assert names == ["app_x"]
    assert [(event.kind, event.severity, event.fields) for event in said] == [
        ("topics_beyond_max", "critical", {"topics": ["app.click", "app.view"]})
    ]


def test_a_topic_that_is_gone_is_said_with_what_was_not_read_of_it() -> None:
    names, said = started(selection({"pattern": r"app\..*"}), ["app.old", "app.view"], {"app.old": 7, "app.view": 9})
    assert names == ["app.click", "app.view"]
    assert [(event.kind, event.severity, event.text) for event in said] == [
        (
            "topic_gone", "critical",
            "topic app.old does not exist any more; 7 of its offsets were not read. The other topics are read on.",
        )
    ]  # fmt: skip
    _, said = started(selection({"pattern": r"app\..*"}), ["app.old"], {"app.old": 0})
    assert [event.severity for event in said] == ["warning"]


def test_the_file_takes_a_list_or_a_section() -> None:
    schema = TopicSelection.model_json_schema(mode="serialization")
    assert [one.get("type", "object") for one in schema["anyOf"]] == ["array", "object"]
