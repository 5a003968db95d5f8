"""A TCP proxy whose answers are late: what a slow server, or a long way to it, is to a client."""

import socket
import threading
import time
from collections.abc import Callable, Iterator
from queue import SimpleQueue
from types import TracebackType
from typing import Self


class Latency:
    """Passes on what comes to one local port to another one; answers wait for `seconds` on their way back."""

    def __init__(self, port: int, to: int) -> None:
        self.seconds = 0.0
        self._to = to
        self._server = socket.create_server(("127.0.0.1", port))

    def __enter__(self) -> Self:
        self._begin(self._accept)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._server.shutdown(socket.SHUT_RDWR)
        self._server.close()

    def _accept(self) -> None:
        while True:
            try:
                client, _ = self._server.accept()
            except OSError:  # closed
                return
            server = socket.create_connection(("127.0.0.1", self._to))
            late: SimpleQueue[tuple[float, bytes]] = SimpleQueue()
            self._begin(self._pass_on, client, server)
            self._begin(self._hold, server, late)
            self._begin(self._send, late, client)

    def _begin(self, work: Callable[..., None], *about: object) -> None:
        threading.Thread(target=work, args=about, daemon=True).start()

    def _pass_on(self, client: socket.socket, server: socket.socket) -> None:
        for piece in _receive(client):
            server.sendall(piece)
        server.close()

    def _hold(self, server: socket.socket, late: "SimpleQueue[tuple[float, bytes]]") -> None:
        for piece in _receive(server):
            late.put((time.monotonic() + self.seconds, piece))
        late.put((0.0, b""))

    def _send(self, late: "SimpleQueue[tuple[float, bytes]]", client: socket.socket) -> None:
        while True:
            due_s, piece = late.get()
            if not piece:
                client.close()
                return
            time.sleep(max(0.0, due_s - time.monotonic()))
            try:
                client.sendall(piece)
            except OSError:  # it has given up
                return


def _receive(connection: socket.socket) -> Iterator[bytes]:
    while True:
        try:
            piece = connection.recv(65_536)
        except OSError:
            return
        if not piece:
            return
        yield piece
