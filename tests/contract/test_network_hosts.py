"""Hosts in network namespaces: a cut link is silent both ways, and nobody else notices."""

import socket
import subprocess
from collections.abc import Iterator

import pytest

from tests.servers import network_hosts
from tests.servers.network_hosts import Network

PORT = 20_000


@pytest.fixture
def hosts() -> Iterator[Network]:
    if missing := network_hosts.missing():
        pytest.skip(f"NOT RUN: {missing}")
    with network_hosts.network("client", "server", "other") as made:
        yield made


def connect(hosts: Network, client: str) -> socket.socket:
    """Connect a host to the server; the socket waits for a second at most."""
    with hosts[client].enter():
        return socket.create_connection((hosts["server"].address, PORT), timeout=1)


def test_a_cut_link_is_silent_both_ways_and_goes_on_when_it_is_whole(hosts: Network) -> None:
    with hosts["server"].enter():
        listener = socket.create_server((hosts["server"].address, PORT))
    client, other = connect(hosts, "client"), connect(hosts, "other")
    ends = [listener.accept()[0] for _ in range(2)]
    with hosts.cut("client", "server"):
        client.sendall(b"to the server")
        ends[0].sendall(b"to the client")
        with pytest.raises(TimeoutError):
            client.recv(100)
        ends[0].setblocking(False)
        with pytest.raises(BlockingIOError):
            ends[0].recv(100)
        with pytest.raises(TimeoutError):
            connect(hosts, "client")
        other.sendall(b"from another")
        assert ends[1].recv(100) == b"from another"
    client.settimeout(30)
    assert client.recv(100) == b"to the client", "what was sent meanwhile is sent again"
    ends[0].settimeout(30)
    assert ends[0].recv(100) == b"to the server"
    for end in (*ends, client, other, listener):
        end.close()


def test_hosts_have_no_way_out_and_none_leads_to_them(hosts: Network) -> None:
    assert hosts["client"].run("ip", "-4", "-o", "address").count("inet ") == 2, "its own, and loopback"
    outside = "192.0.2.1"  # RFC 5737: of nobody
    with hosts["client"].enter(), pytest.raises(OSError, match=r"unreachable|timed out"):
        socket.create_connection((outside, 9), timeout=1)
    assert (
        hosts["client"].address
        not in subprocess.run(["ip", "-4", "address"], capture_output=True, text=True, check=True).stdout
    )
