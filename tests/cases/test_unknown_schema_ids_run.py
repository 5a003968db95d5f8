"""A driver that holds a batch for unknown schema ids: a stop ends it without a stack, and the next start goes on."""

import struct
import time
from collections.abc import Callable

import pytest

from tests.support import oracle
from tests.support.writer_process import Site

pytestmark = [pytest.mark.slow, pytest.mark.timeout(300)]
GRACE_S = 12


def test_a_stop_in_a_grace_ends_without_a_stack_and_the_next_start_goes_on(
    site: Site, topic: Callable[..., str]
) -> None:
    name = topic(1)
    lake = site.pipeline("events", [name], schemas={"unknown_id_timeout": f"{GRACE_S} s"})
    site.fill(name, 100)
    site.send(name, [(b"", struct.pack(">bI", 0, 987_000 + number) + b"stray") for number in range(20)])
    writer = site.start()
    writer.until(lambda: "schema_unknown" in writer.output())
    met_s = time.monotonic()
    said = writer.stop()
    assert "Traceback" not in said, said
    assert "\tat " not in said, said
    time.sleep(max(0.0, GRACE_S - (time.monotonic() - met_s)))
    said = site.once()
    assert "schema_unknown" not in said, "the grace is over"
    rows = oracle.rows(lake.with_name("events_dead_letters"), "count(*), count(DISTINCT schema_id)")
    assert rows == [(20, 20)]
    oracle.check(lake, "events", site.ends(name))
