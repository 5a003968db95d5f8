"""What a hook was told is never forgotten, and what it is still to be told neither, whoever writes it down."""

from dataclasses import replace
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest
from hypothesis import given, strategies as st

from headrace.writer.hooks.outbox import FOLDER, Outbox, OutboxContent, OutboxEntry, OutboxUnreadable
from headrace.writer.storage.local import LocalStore

NOON = datetime(2026, 11, 20, 12, tzinfo=UTC)


def pending(entry: int, bucket: str = "05", version: int = 1) -> OutboxEntry:
    return OutboxEntry(f"hour={bucket}", (bucket,), version, entry, NOON)


def taken(outbox: Outbox, pending: list[OutboxEntry], position: int, *, newest_only: bool = False) -> OutboxContent:
    return outbox.change(lambda box: (box or OutboxContent(-1)).add(pending, position, newest_only=newest_only))


def test_a_box_reads_as_it_was_written(tmp_path: Path):
    outbox = Outbox(LocalStore(str(tmp_path)), "druid")
    assert outbox.read() is None
    one = pending(3, "Köln/1").after_failure(NOON, "no 'answer'", None, {"accepted": "task", "try": 2})
    box = OutboxContent(7, (one, replace(pending(5), bucket=(None, "x"))), 4, 1, 2, {"bucket": ["05"], "version": 1})
    assert outbox.change(lambda _: box) == box
    assert Outbox(LocalStore(str(tmp_path)), "druid").read() == box


def test_each_key_is_seen_to_in_order_and_none_waits_for_another():
    box = OutboxContent(9, (pending(1, "05"), pending(2, "06"), pending(3, "05", 2)))
    assert [one.entry for one in box.next_entries()] == [1, 2]
    assert [one.entry for one in box.complete(box.pending[0], NOON, "").next_entries()] == [2, 3]


def test_a_newer_version_takes_the_place_of_one_that_waits_only_where_the_newest_is_enough():
    waiting = OutboxContent(1, (pending(1),))
    newer = [pending(4, version=2), pending(5, "06")]
    assert [one.entry for one in waiting.add(newer, 6, newest_only=False).pending] == [1, 4, 5]
    box = waiting.add(newer, 6, newest_only=True)
    assert ([one.entry for one in box.pending], box.superseded, box.position) == ([4, 5], 1, 6)


def test_a_delivered_bucket_is_not_added_again():
    box = OutboxContent(-1).add([pending(1)], 3, newest_only=False)
    assert box.complete(box.pending[0], NOON, "").add([pending(1)], 3, newest_only=False).pending == ()


def test_pauses_double_up_to_ten_minutes_and_are_never_shorter_than_asked_for():
    one, now = pending(1), NOON
    for attempt in range(12):
        one = one.after_failure(now, "no", None, {})
        pause = one.due - now
        most = min(timedelta(seconds=5 * 2**attempt), timedelta(minutes=10))
        assert most / 2 <= pause <= most
    assert (one.after_failure(now, "no", timedelta(hours=1), {}).due - now) == timedelta(hours=1)
    assert one.attempts == 12


@given(st.lists(st.tuples(st.booleans(), st.sampled_from(["look", "take", "deliver"])), max_size=40))
def test_of_two_processes_neither_loses_an_outbox_entry(tmp_path_factory: pytest.TempPathFactory, steps):
    """Each looks at a box, and acts on what it saw, however old that is by then. Every entry seals something."""
    store = LocalStore(str(tmp_path_factory.mktemp("box")))
    boxes = (Outbox(store, "hook"), Outbox(store, "hook"))
    seen: list[OutboxContent | None] = [None, None]
    sealed, told = 0, set()
    for first, step in steps:
        at = 0 if first else 1
        match step:
            case "look":
                seen[at] = boxes[at].read()
            case "take":
                sealed += 1
                since = -1 if seen[at] is None else seen[at].position
                seen[at] = taken(boxes[at], [pending(n) for n in range(since + 1, sealed)], sealed - 1)
            case "deliver" if seen[at] is not None and seen[at].pending:
                one = seen[at].next_entries()[0]
                told.add(one.entry)
                seen[at] = boxes[at].change(lambda box, one=one: box.complete(one, NOON, ""))
    box = boxes[0].read() or OutboxContent(-1)
    assert told | {one.entry for one in box.pending} == set(range(box.position + 1))
    assert len(list(store.list(f"{FOLDER}/hook"))) <= 2


def test_a_file_that_is_no_outbox_is_refused(tmp_path: Path):
    outbox = Outbox(LocalStore(str(tmp_path)), "druid")
    outbox.change(lambda _: OutboxContent(1))
    (file,) = (tmp_path / FOLDER / "druid").iterdir()
    for content, why in (("{", "is no outbox"), ('{"format": 2}', "another version"), ("[]", "is no outbox")):
        file.write_text(content)
        with pytest.raises(OutboxUnreadable, match=why):
            outbox.read()
