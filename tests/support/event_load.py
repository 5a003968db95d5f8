"""Events that come at a rate, for as long as a test wants them."""

import itertools
import threading
import time
from typing import Self

from confluent_kafka import Producer

from tests.support.writer_process import Site

_STEP_S = 0.1


class Load:
    """Sends events of a topic at `per_s`, which may be changed at any moment, from a thread of its own."""

    def __init__(self, site: Site, topic: str, per_s: float, distinct: int = 2_000) -> None:
        self.per_s = per_s
        self.sent = 0
        self._topic = topic
        self._values = itertools.cycle(site.values(topic, distinct))
        self._producer = Producer({"bootstrap.servers": site.bootstrap, "queue.buffering.max.messages": 1_000_000})
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._run, name=f"load of {topic}", daemon=True)

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.end()

    def end(self) -> None:
        """Send no more; all that was sent is in Kafka when this returns."""
        self._stop.set()
        self._thread.join(30)
        assert self._producer.flush(60) == 0

    def _run(self) -> None:
        owed = 0.0
        last_s = time.monotonic()
        while not self._stop.wait(_STEP_S):
            now_s = time.monotonic()
            owed += self.per_s * (now_s - last_s)
            last_s = now_s
            for key, value in itertools.islice(self._values, int(owed)):
                self._producer.produce(self._topic, value, key)
                self.sent += 1
            owed -= int(owed)
            self._producer.poll(0)
