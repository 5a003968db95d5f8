"""The real servers of the demo and the tests, on loopback, without Docker. The one place that starts them together."""

from collections.abc import Callable
from pathlib import Path
from typing import Self

from writer.demo.devstack.kafka import Broker
from writer.demo.devstack.process import ServerFailed
from writer.demo.devstack.registry import Registry

__all__ = ["Broker", "Registry", "ServerFailed", "Stack"]


class Stack:
    """A broker and a registry under one directory, started side by side; `.broker.bootstrap`, `.registry.url`.

    Enter it on a thread that outlives it, best the main one: the kernel ends both servers with that thread, so that a
    killed demo leaves nothing behind.
    """

    def __init__(
        self, directory: Path, *, auto_create: bool = False, say: Callable[[str], None] = lambda _: None
    ) -> None:
        self.broker = Broker(directory / "kafka", auto_create=auto_create, say=say)
        self.registry = Registry(directory / "registry", say=say)

    def start(self) -> None:
        """Start both and return when both answer; none is left if one fails.

        Raises ArtifactError, JavaMissing, ServerFailed.
        """
        try:
            self.registry.launch()  # the first second of it passes while the broker formats its directory
            self.broker.launch()
            self.broker.wait()
            self.registry.wait()
        except BaseException:
            self.stop()
            raise

    def stop(self) -> None:
        """Stop both. Does nothing to one that is not running."""
        try:
            self.registry.stop()
        finally:
            self.broker.stop()

    def __enter__(self) -> Self:
        self.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.stop()
