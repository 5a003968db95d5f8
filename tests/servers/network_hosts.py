"""Hosts of a test's own: network namespaces behind a router, where the link between any two of them can be cut.

A namespace lasts while this process holds its file or a process runs in it, so a killed test leaves none behind.
Nothing leads from them to the machine's own network. Their addresses are of 198.18.0.0/15, which RFC 2544 sets aside
for tests of networks. Only root may make them: `python -m tests.servers.network_hosts` says where that is not so.
"""

import ctypes
import os
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from shutil import which

_NETWORK = 0x40000000  # CLONE_NEWNET; os.unshare and os.setns are of Python 3.12
_OWN = "/proc/thread-self/ns/net"
_libc = ctypes.CDLL(None, use_errno=True)


class NoHosts(Exception):
    """This machine, or this user, cannot make hosts. Its message says what is missing."""


@dataclass(frozen=True)
class Host:
    """One host, with an address of its own."""

    name: str
    address: str
    namespace: int | None  # file descriptor; None: of no network of ours

    @contextmanager
    def enter(self) -> Iterator[None]:
        """Put the calling thread on this host: its sockets, and the threads and processes that it starts meanwhile."""
        if self.namespace is None:
            yield
            return
        with _back_afterwards():
            _check_call(_libc.setns(self.namespace, _NETWORK))
            yield

    def run(self, *command: str) -> str:
        """Run a command on this host. Returns what it said; raises NoHosts when it fails."""
        with self.enter():
            done = subprocess.run(command, capture_output=True, text=True, timeout=30, check=False)
        if done.returncode:
            raise NoHosts(f"{' '.join(command)} fails with {done.returncode}: {done.stderr.strip()}")
        return done.stdout


THIS_HOST = Host("this host", "127.0.0.1", None)


@dataclass
class Network:
    """Hosts by name, each linked to a router. A link between two of them is whole, or cut."""

    _router: Host
    _hosts: dict[str, Host] = field(default_factory=dict)

    def __getitem__(self, name: str) -> Host:
        return self._hosts[name]

    def add(self, name: str) -> Host:
        """Make one more host."""
        number = len(self._hosts) + 1
        gateway = f"198.18.{number}.1"
        address = f"198.18.{number}.2"
        host = Host(name, address, _new_namespace())
        self._hosts[name] = host
        host.run("ip", "link", "set", "lo", "up")
        peer = ("peer", "name", f"host{number}", "netns", f"/proc/{os.getpid()}/fd/{self._router.namespace}")
        host.run("ip", "link", "add", "eth0", "type", "veth", *peer)
        self._router.run("ip", "address", "add", f"{gateway}/24", "dev", f"host{number}")
        self._router.run("ip", "link", "set", f"host{number}", "up")
        host.run("ip", "address", "add", f"{address}/24", "dev", "eth0")
        host.run("ip", "link", "set", "eth0", "up")
        host.run("ip", "route", "add", "default", "via", gateway)
        return host

    @contextmanager
    def cut(self, host: str, other: str) -> Iterator[None]:
        """Let every packet between two hosts vanish during the block, as on a broken link: nobody is told."""
        self._rules("add", host, other)
        try:
            yield
        finally:
            self._rules("delete", host, other)

    def _rules(self, verb: str, host: str, other: str) -> None:
        addresses = self[host].address, self[other].address
        for sender, receiver in (addresses, addresses[::-1]):
            self._router.run("ip", "rule", verb, "from", sender, "to", receiver, "blackhole")

    def close(self) -> None:
        """Let go of all namespaces: the kernel removes those in which nothing runs."""
        for host in (*self._hosts.values(), self._router):
            if host.namespace is not None:
                os.close(host.namespace)


@contextmanager
def network(*names: str) -> Iterator[Network]:
    """Make hosts until the end of the block. Raises NoHosts where that cannot be."""
    if why := missing():
        raise NoHosts(why)
    router = Host("router", "", _new_namespace())
    hosts_network = Network(router)
    try:
        with router.enter():
            Path("/proc/sys/net/ipv4/ip_forward").write_text("1")
        for name in names:
            hosts_network.add(name)
        yield hosts_network
    finally:
        hosts_network.close()


def missing() -> str:
    """Say what hosts need and this machine or user lacks; '' where it lacks nothing."""
    if which("ip") is None:
        return "hosts in network namespaces need the command `ip` (apt-get install iproute2)"
    try:
        os.close(_new_namespace())
    except OSError as error:
        return f"hosts in network namespaces need root, with CAP_SYS_ADMIN ({error.strerror})"
    return ""


def _new_namespace() -> int:
    """Make a network namespace. Returns the file that keeps it. Raises OSError."""
    with _back_afterwards():
        _check_call(_libc.unshare(_NETWORK))
        return os.open(_OWN, os.O_RDONLY | os.O_CLOEXEC)


@contextmanager
def _back_afterwards() -> Iterator[None]:
    """Return the calling thread to the namespace that it is in now."""
    own = os.open(_OWN, os.O_RDONLY | os.O_CLOEXEC)
    try:
        yield
    finally:
        _check_call(_libc.setns(own, _NETWORK))
        os.close(own)


def _check_call(result: int) -> None:
    """Raise what a system call of libc failed with."""
    if result != 0:
        number = ctypes.get_errno()
        raise OSError(number, os.strerror(number))


if __name__ == "__main__":
    if reason := missing():
        print(f"NOT RUN: links between hosts that are cut (tests/fault/test_network.py): {reason}")
