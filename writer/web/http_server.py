"""An HTTP server on a thread: routes, tokens, TLS, response headers."""

import errno
import hmac
import ipaddress
import json
import socket
import socketserver
import ssl
import sys
import threading
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from http import HTTPStatus
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any
from urllib.parse import urlsplit

from headrace.writer.clients import tls
from headrace.writer.config.sections.connections import Http
from headrace.writer.core import logging
from headrace.writer.core.errors import ConfigError, HeadraceError
from headrace.writer.web.page import content, policy

# Of every response: no caching, no content sniffing, no framing, no referrer.
HEADERS: Mapping[str, str] = {
    "Content-Security-Policy": policy(content().decode()),
    "X-Content-Type-Options": "nosniff",
    "X-Frame-Options": "DENY",
    "Referrer-Policy": "no-referrer",
    "Cache-Control": "no-store",
}
# A connection that sends nothing for so long is closed.
_SILENT_CLIENT_S = 10
# The end of the server waits for one poll.
_POLL_S = 0.1
TEXT = "text/plain; charset=utf-8"
Answer = tuple[HTTPStatus, str, bytes]
# Takes the path, and what the client accepts.
Get = Callable[[str, str], Answer]
# Takes the path and the Authorization header; None: nothing is posted there.
Post = Callable[[str, str], Answer | None]
# The same for a GET that needs a token; None: the path is open to all, or unknown.
Guarded = Post
NOT_HERE: Answer = (HTTPStatus.NOT_FOUND, TEXT, b"not here; see /\n")


def json_answer(document: Mapping[str, Any]) -> Answer:
    """Answer with one JSON document."""
    return HTTPStatus.OK, "application/json", (json.dumps(document) + "\n").encode()


def nothing(_path: str, _authorization: str) -> Answer | None:
    """Refuse every POST, and guard no GET."""
    return None


def first_of(*posts: Post) -> Post:
    """Answer a POST by the handler of its path."""

    def respond(path: str, authorization: str) -> Answer | None:
        for post in posts:
            response = post(path, authorization)
            if response is not None:
                return response
        return None

    return respond


def has_token(token: str, authorization: str) -> bool:
    """Return whether an Authorization header has the token; an empty token is never accepted."""
    return bool(token) and hmac.compare_digest(authorization.encode(), f"Bearer {token}".encode())


def is_near(host: str) -> bool:
    """Return whether a client is on this machine: it came over loopback."""
    address = ipaddress.ip_address(host.partition("%")[0])
    mapped = None
    if isinstance(address, ipaddress.IPv6Address):
        mapped = address.ipv4_mapped
    return (mapped or address).is_loopback


def is_ours(host: str, configured_host: str) -> bool:
    """Return whether a Host header names this machine: by an address, as localhost, or as it is configured."""
    try:
        name = urlsplit(f"//{host}").hostname or ""
    except ValueError:
        return False
    with suppress(ValueError):
        ipaddress.ip_address(name)
        return True
    return name in ("", "localhost", configured_host.lower())


class _Handler(BaseHTTPRequestHandler):
    timeout = _SILENT_CLIENT_S
    error_content_type = TEXT
    # The body of an answer to other methods.
    error_message_format = "%(message)s\n"
    server: "_Server"

    def do_GET(self) -> None:
        """Answer a GET request."""
        if self._refuse_foreign_host():
            return
        response = self.server.guarded(self.path, self.headers.get("Authorization", ""))
        if response is None:
            response = self.server.get(self.path, self.headers.get("Accept", ""))
        self._send(response)

    do_HEAD = do_GET  # noqa: N815 - the name that http.server looks for

    def do_POST(self) -> None:
        """Answer a POST request."""
        if self._refuse_foreign_host():
            return
        if not is_near(self.client_address[0]):
            self._send((HTTPStatus.FORBIDDEN, TEXT, b"this is done from the same machine only\n"))
            return
        response = self.server.post(self.path, self.headers.get("Authorization", ""))
        if response is None:
            self.send_error(HTTPStatus.NOT_IMPLEMENTED, f"Unsupported method ({self.command!r})")
        else:
            self._send(response)

    def _refuse_foreign_host(self) -> bool:
        """Refuse a browser that another site's name led to this machine, by a name server of its own.

        Returns whether the request was refused.
        """
        if not self.server.is_local or is_ours(self.headers.get("Host", ""), self.server.host):
            return False
        self._send((HTTPStatus.MISDIRECTED_REQUEST, TEXT, b"ask by address, or as localhost\n"))
        return True

    def _send(self, response: Answer) -> None:
        status, content_type, body = response
        self.send_response(status)
        self.send_header("Content-Type", content_type)
        self.send_header("Content-Length", str(len(body)))
        for name, value in HEADERS.items():
            self.send_header(name, value)
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(body)

    def version_string(self) -> str:
        """Return the server's name, without the names and versions of its libraries."""
        return "headrace"

    def log_message(self, format: str, *args: object) -> None:  # noqa: A002 - the parameter's name is inherited
        """Log nothing: scrapes come every few seconds."""


class _Server(ThreadingHTTPServer):
    daemon_threads = True

    def __init__(
        self, address: tuple[str, int], get: Get, post: Post, guarded: Guarded, context: ssl.SSLContext | None
    ) -> None:
        self.get = get
        self.post = post
        self.guarded = guarded
        self._context = context
        self.host = address[0]
        self.is_local = False
        self.address_family = socket.AF_INET6 if ":" in address[0] else socket.AF_INET
        super().__init__(address, _Handler)

    def finish_request(self, request: Any, client_address: Any) -> None:
        """Do the TLS handshake on the request's thread, so that a silent client blocks no other."""
        if self._context is None:
            super().finish_request(request, client_address)
            return
        request.settimeout(_SILENT_CLIENT_S)
        with self._context.wrap_socket(request, server_side=True) as secured:
            super().finish_request(secured, client_address)

    def server_bind(self) -> None:
        """Bind without asking a name server for this machine's name, which can take long."""
        socketserver.TCPServer.server_bind(self)
        self.server_name, self.server_port = self.server_address[:2]  # type: ignore[assignment]
        self.is_local = ipaddress.ip_address(str(self.server_address[0])).is_loopback

    def handle_error(self, request: Any, client_address: Any) -> None:  # noqa: ARG002 - inherited
        """Ignore clients that disconnect; log all other errors."""
        error = sys.exc_info()[1]
        if not isinstance(error, OSError):
            logging.detail(error)


@contextmanager
def answering(
    settings: Http, get: Get, post: Post = nothing, section: str = "http", guarded: Guarded = nothing
) -> Iterator[str]:
    """Answer while inside; gives the URL. Raises HeadraceError, naming the section, when the port is taken."""
    server = _open_server(settings, get, post, guarded, section)
    thread = threading.Thread(target=server.serve_forever, args=[_POLL_S], name="http", daemon=True)
    thread.start()
    url = url_of(settings.host, server.server_port, "http" if settings.tls is None else "https")
    logging.event("http_listening", url=url)
    try:
        yield url
    finally:
        server.shutdown()
        server.server_close()


def _open_server(settings: Http, get: Get, post: Post, guarded: Guarded, section: str) -> _Server:
    context = None
    if settings.tls is not None:
        context = tls.server_context(*settings.tls)
    try:
        return _Server((settings.host, settings.port), get, post, guarded, context)
    except OSError as error:
        where = f"{settings.host}:{settings.port}"
        if error.errno == errno.EADDRINUSE:
            fix = f"Set {section}.port to a free one (0 takes any)"
            if section == "http":
                fix += ", or http.enabled to false"
            raise HeadraceError(
                f"port {settings.port} of {settings.host} is taken, perhaps by another driver. {fix}."
            ) from error
        raise ConfigError(
            f"cannot listen on {where}: {error.strerror or error}. Correct {section}.host or {section}.port."
        ) from error


def url_of(host: str, port: int, scheme: str) -> str:
    """Return the URL of a server; for one that listens on every address, that of loopback."""
    with suppress(ValueError):
        address = ipaddress.ip_address(host)
        if address.is_unspecified:
            host = "127.0.0.1" if isinstance(address, ipaddress.IPv4Address) else "::1"
    if ":" in host:
        host = f"[{host}]"
    return f"{scheme}://{host}:{port}"
