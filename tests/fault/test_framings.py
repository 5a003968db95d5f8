"""One topic with each format behind each frame, plain JSON and garbage, and a writer that is killed.

Each row and each dead letter is compared with the record that Kafka has at its offset.
"""

import signal
from collections.abc import Callable, Iterator
from itertools import zip_longest

import pytest

from headrace.writer.demo.devstack.events import NEW_FIELD
from headrace.writer.demo.devstack.value_encoding import DECLARED
from tests.servers.glue_api import GlueApi
from tests.support import oracle
from tests.support.framed_events import (
    FRAMES,
    SCHEMA_KINDS,
    FramedMessage,
    Registries,
    Stream,
    check_records,
    encode_stream,
    send_framed,
    streams_of,
    wire_settings,
)
from tests.support.writer_process import Site

pytestmark = [pytest.mark.slow, pytest.mark.timeout(1800)]
MakeTopic = Callable[..., str]
POINTS = ("before_stage", "after_stage", "before_commit", "after_commit", "before_redo", "after_batch")
# Of each stream in a round.
EVENTS = 90


def mixed_messages(
    streams: list[Stream], registries: Registries, topic: str, later: int, round_: int
) -> Iterator[FramedMessage]:
    """Yield a record of each stream, then the next of each. So many streams write by their later schema."""
    groups = [
        encode_stream(
            stream,
            registries,
            topic,
            EVENTS,
            kind="clicks_2" if number < later else "clicks",
            seed=100 * round_ + number,
        )
        for number, stream in enumerate(streams)
    ]
    for messages in zip_longest(*groups):
        yield from (message for message in messages if message is not None)


@pytest.mark.cell(
    "kill -9 of the driver",
    "at six points, while all formats and frames alternate in one topic, 4 bytes are {owner} ids",
)
@pytest.mark.parametrize("owner", FRAMES)
@pytest.mark.parametrize("form", ["delta", "parquet"])
@pytest.mark.usefixtures("glue")
def test_a_topic_of_all_frames_and_formats_loses_and_doubles_nothing(
    site: Site, api: GlueApi, topic: MakeTopic, form: str, owner: str
) -> None:
    name = topic(2)
    wires = FRAMES[owner]
    settings = {
        "formats": [*SCHEMA_KINDS, "json"],
        "columns": {"declared": dict(DECLARED)},
        "wire": wire_settings(wires),
        "limits": {"max_failed_ratio": 1},
        "commit": {"max_offsets": 1_000},
    }
    lake = site.pipeline("events", [name], form=form, raw=True, **settings)
    streams = streams_of(wires)
    registries = Registries(site.registry_url, api)
    sent_by_later = 0
    for round_, point in enumerate(POINTS):
        later = round_ * len(streams) // (len(POINTS) - 1)
        send_framed(site, name, mixed_messages(streams, registries, name, later, round_))
        sent_by_later += later * EVENTS
        site.once(env={"HEADRACE_FAULT": f"{point}:{1 + round_ % 2}"}, code=-signal.SIGKILL)
        oracle.check_rows(lake, "events")
    site.once()
    oracle.check(lake, "events", site.ends(name))
    check_records(site, lake, name)
    # Of plain JSON the member is in `rest`, also when schemas have made a column of that name.
    new_members = f"count({NEW_FIELD}) + count(json_extract_string(rest, '$.{NEW_FIELD}'))"
    assert oracle.rows(lake, new_members) == [(sent_by_later,)]
