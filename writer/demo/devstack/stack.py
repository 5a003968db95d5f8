"""Starts the real servers of demo and tests together, on loopback, without Docker."""

from pathlib import Path

from headrace.writer.demo.devstack.kafka import Broker
from headrace.writer.demo.devstack.process import Server, ServerFailed
from headrace.writer.demo.devstack.registry import Registry

__all__ = ["Broker", "Registry", "ServerFailed", "Stack"]


class Stack(Server):
    """A broker and a registry under one directory, started side by side; `.broker.bootstrap`, `.registry.url`.

    Enter it on a thread that outlives it, best the main one: the kernel ends both servers with that thread, so that a
    killed demo leaves nothing behind.
    """

    def __init__(self, directory: Path, *, has_registry: bool = True) -> None:
        """Without `has_registry`, the broker alone is started."""
        self.has_registry = has_registry
        self.broker = Broker(directory / "kafka")
        self.registry = Registry(directory / "registry")

    @property
    def servers(self) -> str:
        """What is started, in words."""
        return "broker and registry" if self.has_registry else "broker"

    def launch(self) -> None:
        """Start both. `wait` waits until they answer. Raises ArtifactError, JavaMissing, ServerFailed."""
        # Its first second passes while the broker formats its directory.
        if self.has_registry:
            self.registry.launch()
        self.broker.launch()

    def wait(self) -> None:
        """Return once both answer. Raises ServerFailed."""
        self.broker.wait()
        if self.has_registry:
            self.registry.wait()

    def stop(self) -> None:
        """Stop both. Does nothing to one that is not running."""
        try:
            self.registry.stop()
        finally:
            self.broker.stop()
