"""What every store promises. One suite, every adapter."""

import re
import threading
from collections.abc import Callable
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from pyarrow import fs

from headrace.writer.storage.base import Store, StoreError, Unanswered
from headrace.writer.storage.locations import store_at
from headrace.writer.storage.missing_bucket import name_missing_bucket
from headrace.writer.storage.probe import ProbeFailed, probe
from headrace.writer.storage.requests.counts import REQUEST_COUNTS

ODD = "dt=2026-11-20/h x+%3A:é&;=@,'()!~\u2028ü.json"


FIXTURES = {"s3": "on_s3", "gs": "on_gcs", "az": "on_azure"}


@pytest.fixture(params=["local", *FIXTURES])
def store(request: pytest.FixtureRequest, tmp_path: Path) -> Store:
    if request.param == "local":
        return store_at(f"{tmp_path}/below/")
    server = request.getfixturevalue(FIXTURES[request.param])
    return store_at(f"{server.bucket()}/some/below/")


def content(store: Store, name: str) -> bytes | None:
    stored = store.read(name)
    return None if stored is None else stored.content


def test_an_object_is_read_as_it_was_put(store: Store) -> None:
    store.put("a/b", b"one")
    assert content(store, "a/b") == b"one"
    store.put("a/b", b"two")
    assert content(store, "a/b") == b"two"
    store.put("empty", b"")
    assert content(store, "empty") == b""


def test_a_missing_object_is_read_as_none(store: Store) -> None:
    assert (store.read("none"), store.mark("none"), list(store.list()), list(store.list("none/"))) == (
        None, None, [], [],
    )  # fmt: skip
    store.put("a/b", b"one")
    assert (store.read("a/c"), store.mark("a"), store.mark("a/")) != (b"", b"", b"")
    assert store.read("a/c") is None
    store.delete("none")
    store.sweep("none", before=1e12)


def test_names_may_be_odd(store: Store) -> None:
    store.put(ODD, b"odd")
    assert content(store, ODD) == b"odd"
    folder, name = ODD.split("/")
    assert list(store.list()) == [f"{folder}/"]
    assert list(store.list(folder)) == list(store.list(f"{folder}/")) == [name]
    store.copy(ODD, f"{ODD} again")
    assert content(store, f"{ODD} again") == b"odd"
    store.delete(ODD)
    assert store.read(ODD) is None


def test_a_location_says_where_and_ends_without_a_slash(store: Store) -> None:
    assert store.location.endswith("below")
    store.put("a", b"1")


def test_only_what_stands_directly_in_a_folder_is_listed(store: Store) -> None:
    for name in ("a", "b/c", "b/d/e", "bc", "f/g"):
        store.put(name, b"1")
    assert sorted(store.list()) == ["a", "b/", "bc", "f/"]
    assert sorted(store.list("b")) == ["c", "d/"]
    assert sorted(store.list("b/d")) == ["e"]
    assert list(store.list("a")) == []


@pytest.mark.slow
def test_more_names_than_one_answer_holds_are_listed(store: Store) -> None:
    names = [f"{n:05}" for n in range(1_005)]
    for name in names:
        store.put(f"many/{name}", b"")
    assert sorted(store.list("many")) == names


def test_a_name_that_was_deleted_is_free(store: Store) -> None:
    store.put("a", b"1")
    store.delete("a")
    store.delete("a")
    assert store.read("a") is None
    assert store.put_if_absent("a", b"2")


def test_an_object_is_put_only_where_none_is(store: Store) -> None:
    assert store.put_if_absent("log/1", b"first")
    assert not store.put_if_absent("log/1", b"second")
    assert content(store, "log/1") == b"first"
    store.put("log/2", b"")
    assert not store.put_if_absent("log/2", b"second")
    assert sorted(store.list("log")) == ["1", "2"]


def test_an_object_is_not_put_when_something_speaks_against_it(store: Store) -> None:
    assert not store.put_if_absent("log/1", b"one", is_wanted=lambda: False)
    store.put("log/2", b"two")
    assert not store.put_if_absent("log/1", b"one", is_wanted=lambda: False)
    assert list(store.list("log")) == ["2"]


def test_the_condition_of_a_put_is_asked_before_the_object_is_visible(store: Store) -> None:
    seen: list[object] = []

    def is_wanted() -> bool:
        seen.append((content(store, "log/1"), list(store.list("log"))))
        return True

    assert store.put_if_absent("log/1", b"one", is_wanted)
    assert {str(each) for each in seen} == {"(None, [])"}


def test_of_threads_that_race_for_a_name_one_gets_it(store: Store) -> None:
    begin = threading.Barrier(6)
    won: list[tuple[int, int]] = []

    def race(who: int) -> None:
        for turn in range(10):
            begin.wait()
            if store.put_if_absent(f"log/{turn}", b"%d" % who):
                won.append((turn, who))

    threads = [threading.Thread(target=race, args=(n,)) for n in range(6)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert sorted(turn for turn, _ in won) == list(range(10))
    assert {turn: b"%d" % who for turn, who in won} == {turn: content(store, f"log/{turn}") for turn in range(10)}


def test_a_mark_tells_an_object_from_the_next_of_its_name(store: Store) -> None:
    store.put("a", b"one")
    stored = store.read("a")
    assert stored is not None
    assert store.mark("a") == stored.mark
    store.delete("a")
    store.put("a", b"two")
    assert store.mark("a") != stored.mark


def test_a_copy_stands_for_itself(store: Store) -> None:
    store.put("a", b"one")
    store.put("b/c", b"old")
    store.copy("a", "b/c")
    store.put("a", b"two")
    assert content(store, "b/c") == b"one"


def test_a_moved_object_is_read_by_its_new_name_alone(store: Store) -> None:
    store.put("staged/a", b"one")
    store.put("b/c", b"old")
    assert store.move("staged/a", "b/c")
    assert (content(store, "b/c"), store.read("staged/a")) == (b"one", None)
    assert not store.move("staged/a", "b/c")
    assert not store.move("staged/a", f"new/{ODD}")
    assert (content(store, "b/c"), store.read(f"new/{ODD}")) == (b"one", None)
    assert store.move("b/c", f"new/{ODD}")
    assert (content(store, f"new/{ODD}"), store.read("b/c")) == (b"one", None)


def test_large_files_lie_below_the_same_location(store: Store) -> None:
    filesystem, root = store.files()
    rows = pa.table({"id": list(range(1_000))})
    store.put("folder/other", b"")
    with filesystem.open_output_stream(f"{root}/folder/rows.parquet") as out:
        pq.write_table(rows, out)
    assert sorted(store.list("folder")) == ["other", "rows.parquet"]
    assert pq.read_table(f"{root}/folder/rows.parquet", filesystem=filesystem) == rows
    whole = content(store, "folder/rows.parquet")
    assert whole is not None
    assert whole[:4] == whole[-4:] == b"PAR1"
    store.delete("folder/rows.parquet")
    assert list(store.list("folder")) == ["other"]


@pytest.fixture(params=FIXTURES)
def store_without_bucket(request: pytest.FixtureRequest) -> Store:
    request.getfixturevalue(FIXTURES[request.param])
    return store_at(f"{request.param}://no-such-bucket/some/below")


def test_where_no_bucket_is_nothing_is_taken_for_missing(store_without_bucket: Store) -> None:
    store = store_without_bucket
    operations: dict[str, Callable[[], object]] = {
        "read": lambda: store.read("a"),
        "mark": lambda: store.mark("a"),
        "put": lambda: store.put("a", b"one"),
        "put_if_absent": lambda: store.put_if_absent("a", b"one"),
        "list": lambda: list(store.list()),
        "list a folder": lambda: list(store.list("folder")),
        "copy": lambda: store.copy("a", "b"),
        "move": lambda: store.move("a", "b"),
        "delete": lambda: store.delete("a"),
    }
    for name, operation in operations.items():
        with pytest.raises(StoreError) as failed:
            operation()
        sentence = str(failed.value)
        assert "://no-such-bucket/some/below" in sentence, name
        assert re.search(r"there is no (bucket|container) 'no-such-bucket': 404 ", sentence), (name, sentence)
        assert re.search(r"Make the (bucket|container), or correct the location; if it held a table", sentence), name
        assert not isinstance(failed.value, Unanswered), (name, "to try it again changes nothing")
    with pytest.raises(ProbeFailed, match=r"there is no (bucket|container) 'no-such-bucket'"):
        probe(store, exclusive=True)


def test_a_large_file_of_a_missing_bucket_is_no_missing_file(store_without_bucket: Store) -> None:
    filesystem, root = store_without_bucket.files()
    with (
        pytest.raises(
            StoreError, match=r"://no-such-bucket/some/below/a: there is no \w+ 'no-such-bucket': .* Make the"
        ),
        name_missing_bucket(),
        filesystem.open_output_stream(f"{root}/a") as out,
    ):
        out.write(b"one")
    if isinstance(filesystem, fs.S3FileSystem):
        # Arrow's client tells nothing more: whoever reads a file has read the log before, which does.
        return
    for look in (
        lambda: filesystem.open_input_file(f"{root}/a"),
        lambda: filesystem.get_file_info(f"{root}/a"),
        lambda: filesystem.get_file_info(fs.FileSelector(root, allow_not_found=True)),
    ):
        with pytest.raises(OSError, match=r"no bucket|no container") as failed:
            look()
        assert not isinstance(failed.value, FileNotFoundError)


@pytest.fixture(params=FIXTURES)
def bucket_store(request: pytest.FixtureRequest) -> Store:
    server = request.getfixturevalue(FIXTURES[request.param])
    return store_at(f"{server.bucket()}/some/below")


def test_an_object_that_is_missing_costs_a_second_request_to_look_at_and_none_to_read(bucket_store: Store) -> None:
    store = bucket_store
    store.put("a", b"one")
    for look, kinds in (
        (lambda: store.mark("a"), {"head": 1}),
        (lambda: store.mark("b"), {"head": 1, "get": 1}),
        (lambda: store.read("b"), {"get": 1}),
    ):
        REQUEST_COUNTS.take()
        look()
        assert {request.kind: count for request, count in REQUEST_COUNTS.take().requests.items()} == kinds
