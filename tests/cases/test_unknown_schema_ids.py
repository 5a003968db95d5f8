"""Schema ids that the registry does not know hold a batch for one grace together, which a restart goes on with."""

import json
import re
import threading
import time
from collections.abc import Callable, Mapping
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest
from hypothesis import given, strategies as st

from headrace.writer.batch.record_columns import RecordColumns
from headrace.writer.batch.task_report import Report
from headrace.writer.columns.schema_plan import ColumnRules, RejectedSchema, WriterSchema
from headrace.writer.config.sections.registry import Registry
from headrace.writer.core.errors import Draining
from headrace.writer.framing.wire_format import CONFLUENT, Wire, framed_id
from headrace.writer.schemas.registry import LISTING_FRESH_S, ByFingerprint, RegistryUnreachable, SchemaNotFound
from headrace.writer.schemas.registry_hold import STRAYS_MAX, RegistryWait, UnknownIds, ignore_wait, remaining_grace
from headrace.writer.schemas.schema_id_check import IdMeanings
from headrace.writer.schemas.tracker import ASK_AGAIN, Schemas
from headrace.writer.storage.base import Store, StoreError
from headrace.writer.storage.locations import store_at
from tests.support.sample_records import EVENT, Schemas as Registered

GRACE = timedelta(seconds=1)
NOW = datetime(2026, 11, 20, 12, tzinfo=UTC)


class Source:
    """A registry that says what `answer` says of the number of questions before."""

    def __init__(self, answer: Callable[[int], str | Exception]) -> None:
        self.answer = answer
        self.asked: list[int] = []

    def schema(self, schema_id: int) -> str:
        answer = self.answer(len(self.asked))
        self.asked.append(schema_id)
        if isinstance(answer, Exception):
            raise answer
        return answer

    def topic_schemas(self, topic: str) -> Mapping[int, str]:  # noqa: ARG002 - none is registered
        return {}


class TwoKindsOfIds:
    """A registry that knows the same number as an id of two kinds, each of another schema."""

    def __init__(self, kind: str = "confluent") -> None:
        self.kind = kind

    def with_ids(self, ids: str) -> "TwoKindsOfIds":
        return TwoKindsOfIds(ids)

    def schema(self, schema_id: int) -> str:
        if schema_id != 1:
            raise SchemaNotFound(f"no {self.kind} id {schema_id}")
        return Registered({1: {**EVENT, "name": self.kind}}, []).schema(1)

    def topic_schemas(self, topic: str) -> Mapping[int, str]:  # noqa: ARG002 - none is registered
        return {}


def never(_: int) -> SchemaNotFound:
    return SchemaNotFound("no such schema")


def waiting(
    source: Source | Registered | TwoKindsOfIds, store: Store | None = None, stopping: threading.Event | None = None,
    grace: timedelta = GRACE, key: str | None = None, on_wait: Callable[[RegistryWait | None], None] = ignore_wait,
) -> Schemas:  # fmt: skip
    columns = RecordColumns() if key is None else RecordColumns(key=(key, "avro"))
    return Schemas(
        "p", source, IdMeanings("p", Registry.model_validate({"url": "http://r"}), dict), bucket_columns=(),
        record_columns=columns, rules=ColumnRules(), unknown_id_timeout=grace, unknown_ids_store=store,
        stopping=stopping or threading.Event(), on_wait=on_wait,
    )  # fmt: skip


def seconds_of(work: Callable[[], object]) -> float:
    began_s = time.monotonic()
    work()
    return time.monotonic() - began_s


@pytest.fixture
def store(tmp_path: Path) -> Store:
    return store_at(str(tmp_path / "checkpoints" / "p"))


def test_many_ids_hold_a_batch_for_one_grace() -> None:
    source = Source(never)
    schemas = waiting(source)
    passed_s = seconds_of(lambda: schemas.learn(range(100, 140)))
    assert 1 <= passed_s < 2
    assert all(isinstance(schemas.plan.schemas[number], RejectedSchema) for number in range(100, 140))


def test_keys_and_values_share_the_grace() -> None:
    schemas = waiting(Registered({}, []), key="_key")
    assert schemas.keys is not None
    report = Report(unknown_schemas={1, 2}, unknown_key_schemas={3, 4})
    assert seconds_of(lambda: schemas.learn_from(report)) < 2
    assert isinstance(schemas.plan.schemas[2], RejectedSchema)
    assert isinstance(schemas.keys.plan.schemas[4], RejectedSchema)


def test_a_wait_says_for_what_and_until_when() -> None:
    waits: list[RegistryWait | None] = []
    began = datetime.now(UTC)
    source = Source(lambda asked: SchemaNotFound("no") if asked else RegistryUnreachable("the registry is down"))
    schemas = waiting(source, grace=timedelta(seconds=1), on_wait=waits.append)
    schemas.learn([7, 8])
    assert waits[-1] is None, "it goes on"
    told = [wait for wait in waits if wait is not None]
    assert told[0].text == "waits for schema id 7: the registry is down"
    assert told[-1].names == ("schema id 7", "schema id 8")
    assert told[-1].until is not None
    assert timedelta(seconds=1) <= told[-1].until - began <= timedelta(seconds=4)


def test_a_stop_ends_what_is_shown_of_a_wait() -> None:
    waits: list[RegistryWait | None] = []
    stopping = threading.Event()
    threading.Timer(0.3, stopping.set).start()
    with pytest.raises(Draining):
        waiting(Source(never), stopping=stopping, on_wait=waits.append).learn([7])
    assert waits[-1] is None


def test_a_restart_goes_on_with_the_grace(store: Store) -> None:
    stopping = threading.Event()
    threading.Timer(0.7, stopping.set).start()
    with pytest.raises(Draining, match=r"asked to stop while it waited for schema id \d"):
        waiting(Source(never), store, stopping).learn([7, 8])
    assert seconds_of(lambda: waiting(Source(never), store).learn([7, 8])) < 0.8
    assert seconds_of(lambda: waiting(Source(never), store).learn([7])) < 0.2, "it has had its grace"


def test_an_id_that_became_known_is_forgotten(store: Store) -> None:
    text = Registered({1: EVENT}, []).schema(1)
    schemas = waiting(Source(lambda asked: text if asked else SchemaNotFound("not yet")), store)
    schemas.learn([7])
    assert isinstance(schemas.plan.schemas[7], WriterSchema)
    assert seconds_of(lambda: waiting(Source(never), store).learn([7])) >= 1


def test_a_registry_that_is_down_takes_nothing_from_a_grace() -> None:
    text = Registered({1: EVENT}, []).schema(1)
    answers = [
        SchemaNotFound("no"),
        RegistryUnreachable("down"),
        RegistryUnreachable("down"),
        SchemaNotFound("no"),
        text,
    ]
    schemas = waiting(Source(answers.__getitem__), grace=timedelta(seconds=2))
    schemas.learn([7])
    assert isinstance(schemas.plan.schemas[7], WriterSchema), "it was down for three seconds"


@pytest.mark.parametrize(
    "content", [b"", b"{", b"[]", b"{}", b'{"format": 2}', b'{"format": 1, "first_met": {"a": 3}}']
)
def test_a_file_that_cannot_be_read_gives_ids_their_grace(store: Store, content: bytes) -> None:
    store.put("unknown_ids.json", content)
    assert seconds_of(lambda: waiting(Source(never), store, grace=timedelta(seconds=0.2)).learn([7])) >= 0.2


class Failing:
    location = "nowhere"

    def read(self, name: str) -> None:
        raise StoreError("reach", name, "it is away", "Wait.")

    def put(self, name: str, content: bytes) -> None:  # noqa: ARG002 - it has nowhere to go
        raise StoreError("reach", name, "it is away", "Wait.")


def test_a_storage_that_fails_ends_no_batch() -> None:
    schemas = waiting(Source(never), Failing(), grace=timedelta(seconds=0.2))  # type: ignore[arg-type]
    schemas.learn([7])
    assert isinstance(schemas.plan.schemas[7], RejectedSchema)


class Stopping(threading.Event):
    """Notes how long a batch waits for ids."""

    def __init__(self) -> None:
        super().__init__()
        self.waits_s: list[float] = []

    def wait(self, timeout: float | None = None) -> bool:
        assert timeout is not None
        self.waits_s.append(timeout)
        return super().wait(timeout)


def test_a_stream_of_strays_holds_a_pipeline_for_one_grace_and_a_tenth_of_the_time(store: Store) -> None:
    stopping = Stopping()
    schemas = waiting(Source(never), store, stopping)
    began_s = time.monotonic()
    first_s = seconds_of(lambda: schemas.learn(range(20)))
    for batch in range(100, 2_000, 20):
        schemas.learn(range(batch, batch + 20))
    passed_s = time.monotonic() - began_s
    assert first_s >= 1, "the first batch waits for one grace"
    assert sum(stopping.waits_s) <= 1 + 0.1 * passed_s, "the others share what has come back of it"
    assert seconds_of(lambda: waiting(Source(never), store).learn([9_999])) < 0.5, "a restart gives none anew"


def test_a_schema_that_comes_late_gives_its_wait_back() -> None:
    text = Registered({1: EVENT}, []).schema(1)
    for_each = [SchemaNotFound("not yet"), text, SchemaNotFound("not yet"), text]
    schemas = waiting(Source(for_each.__getitem__), grace=timedelta(seconds=1.5))
    for schema_id in (7, 8):
        assert seconds_of(lambda number=schema_id: schemas.learn([number])) >= 1
        assert isinstance(schemas.plan.schemas[schema_id], WriterSchema)


def test_a_schema_that_comes_late_amid_strays_is_found_by_a_later_batch() -> None:
    text = Registered({1: EVENT}, []).schema(1)
    registered = set[int]()

    class Late(Source):
        def schema(self, schema_id: int) -> str:
            if schema_id in registered:
                return text
            return super().schema(schema_id)

    schemas = waiting(Late(never), grace=timedelta(seconds=0.2))
    schemas.learn([7, 900, 901])
    registered.add(7)
    schemas.forget_rejections(time.monotonic())
    schemas.forget_rejections(time.monotonic() + ASK_AGAIN.total_seconds() + 1)
    schemas.learn([7, 902])
    assert isinstance(schemas.plan.schemas[7], WriterSchema)


@pytest.mark.parametrize("key", [None, "_key"])
def test_a_batch_of_many_strays_makes_few_requests_and_still_finds_its_schema(key: str | None) -> None:
    text = Registered({1: EVENT}, []).schema(1)

    class Some(Source):
        def schema(self, schema_id: int) -> str:
            answer = super().schema(schema_id) if schema_id != 40 else text
            assert isinstance(answer, str)
            return answer

    source = Some(never)
    schemas = waiting(source, grace=timedelta(seconds=0.1), key=key)
    strays = range(100_000, 110_000)
    passed_s = seconds_of(lambda: schemas.learn([*strays, 40]))
    assert isinstance(schemas.plan.schemas[40], WriterSchema)
    assert passed_s < 10
    assert len(source.asked) <= 3 * (STRAYS_MAX + 8), "each round of questions is bounded"
    reasons = {known.reason for known in schemas.plan.schemas.values() if isinstance(known, RejectedSchema)}
    assert "schema id 100000 is unknown to the registry" in reasons
    not_asked = r"schema id 109999 was not asked for: 50\d other ids of its batch are unknown to the registry"
    assert any(re.fullmatch(not_asked, reason) for reason in reasons)
    schemas.forget_rejections(time.monotonic())
    assert len(schemas.plan.schemas) <= 1_002, "the next batch carries few of them"


def test_the_same_number_in_two_formats_of_one_batch_is_two_ids() -> None:
    schemas = waiting(TwoKindsOfIds(), grace=timedelta(seconds=0.1))
    in_header = Wire("header", "content", "apicurio.value.contentId")
    schemas.use_wire(replace(CONFLUENT, others=(Wire("apicurio", "global"), in_header)))
    ids = [framed_id(number, own_id) for number in range(3) for own_id in (1, 2)]
    schemas.learn(ids)
    names = {}
    reasons = set()
    for schema_id, schema in schemas.plan.schemas.items():
        if isinstance(schema, RejectedSchema):
            reasons.add(schema.reason)
        else:
            names[schema_id] = json.loads(schema.text)["name"]
    assert names == {framed_id(0, 1): "confluent", framed_id(1, 1): "global", framed_id(2, 1): "content"}
    assert reasons == {"schema id 2 is unknown to the registry"}


def test_strays_that_come_again_do_not_keep_the_registry_from_being_asked_for_a_schema(store: Store) -> None:
    text = Registered({1: EVENT}, []).schema(1)
    registered_id = 9_000

    class Some(Source):
        def schema(self, schema_id: int) -> str:
            return text if schema_id == registered_id else super().schema(schema_id)

    ids = [*range(STRAYS_MAX + 100), registered_id]
    grace = timedelta(seconds=0.1)
    schemas = waiting(Some(never), store, grace=grace)
    schemas.learn(ids)
    assert isinstance(schemas.plan.schemas[registered_id], RejectedSchema), "too many others came first"
    again = waiting(Some(never), store, grace=grace)
    again.learn(ids)
    schemas.forget_rejections(time.monotonic())
    schemas.forget_rejections(time.monotonic() + ASK_AGAIN.total_seconds() + 1)
    schemas.learn(ids)
    assert isinstance(schemas.plan.schemas[registered_id], WriterSchema)
    assert isinstance(again.plan.schemas[registered_id], WriterSchema), "a restart knows the strays, too"


def test_new_strays_do_not_keep_the_registry_from_being_asked_again_for_a_schema() -> None:
    text = Registered({1: EVENT}, []).schema(1)
    late_id = 9_000
    registered = set[int]()

    class Late(Source):
        def schema(self, schema_id: int) -> str:
            return text if schema_id in registered else super().schema(schema_id)

    schemas = waiting(Late(never), grace=timedelta(seconds=0.1))
    schemas.learn([late_id])
    registered.add(late_id)
    schemas.forget_rejections(time.monotonic())
    schemas.forget_rejections(time.monotonic() + ASK_AGAIN.total_seconds() + 1)
    schemas.learn([*range(STRAYS_MAX + 100), late_id])
    assert isinstance(schemas.plan.schemas[late_id], WriterSchema)


def test_unknown_fingerprints_share_one_reading_of_the_topics() -> None:
    readings = list[str]()

    class Topics:
        def schema(self, schema_id: int) -> str:
            raise SchemaNotFound(str(schema_id))

        def topic_schemas(self, topic: str) -> Mapping[int, str]:
            readings.append(topic)
            return {}

    schemas = ByFingerprint(Topics())
    schemas.topic_schemas("clicks")
    for number in range(500):
        with pytest.raises(SchemaNotFound, match="no schema of clicks has the fingerprint"):
            schemas.schema(number)
    assert len(readings) <= 3
    time.sleep(LISTING_FRESH_S)
    with pytest.raises(SchemaNotFound):
        schemas.schema(1)
    assert len(readings) <= 4, "later it is read again"


@given(st.lists(st.floats(0, 40), max_size=30))
def test_an_allowance_is_between_nothing_and_one_grace(waits_s: list[float]) -> None:
    unknown_ids = UnknownIds("p", GRACE)
    for wait_s in waits_s:
        assert 0 <= unknown_ids.allowance_s() <= 1
        unknown_ids.spend(wait_s)
    assert unknown_ids.allowance_s() == pytest.approx(max(1 - sum(waits_s), 0), abs=0.05)


def test_at_most_ten_thousand_unknown_ids_are_stored(store: Store) -> None:
    unknown = UnknownIds("p", GRACE, store)
    names = [f"schema id {number}" for number in range(12_000)]
    unknown.remaining_s(names)
    assert len(unknown._deadlines_s) == 10_000
    stored = store.read("unknown_ids.json")
    assert stored is not None
    assert stored.content.count(b"schema id") == 10_000


@given(st.timedeltas(timedelta(days=-400), timedelta(days=400)))
def test_no_step_of_the_clock_makes_a_grace_longer(step: timedelta) -> None:
    left = remaining_grace(NOW, GRACE, NOW + step)
    assert timedelta(0) <= left <= GRACE
    if timedelta(0) <= step <= GRACE:
        assert left == GRACE - step
