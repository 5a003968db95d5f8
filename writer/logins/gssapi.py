"""The system's GSSAPI library of MIT, by ctypes: no compiler is needed at install.

Sources: RFC 2744 (the C binding of GSSAPI), MIT's gssapi_ext.h (credential stores) and krb5.h (caches of tickets).

Other threads run during a call. What a call gets is its own: its buffers, its status, and the words of the library for
that status, which the library keeps for each thread.
"""

import ctypes
from collections.abc import Iterator
from contextlib import contextmanager
from ctypes import POINTER, byref, c_char_p, c_int, c_size_t, c_uint32, c_void_p
from functools import cache
from pathlib import Path
from typing import Any

from headrace.writer.logins.errors import LoginRefused

LIBRARY = "libgssapi_krb5.so.2"
# GSSAPI's library is linked with it.
_KRB5_LIBRARY = "libkrb5.so.3"
_INITIATE = 1
_MUTUAL_FLAG = 2
_REPLAY_FLAG = 4
_INTEGRITY_FLAG = 32
_CONTINUE_NEEDED = 1
# The upper half of a status says what failed.
_FAILED = 0xFFFF0000
_OF_GSSAPI = 1
_OF_MECHANISM = 2
_KRB5_MECHANISM = bytes.fromhex("2a864886f712010202")
PRINCIPAL_NAME = "GSS_KRB5_NT_PRINCIPAL_NAME"
SERVICE_NAME = "GSS_C_NT_HOSTBASED_SERVICE"


class GssFailed(Exception):
    """The library refuses. `code`: of Kerberos, as krb5.h has it; 0 where GSSAPI itself refuses."""

    def __init__(self, reason: str, code: int) -> None:
        super().__init__(reason)
        self.code = code


class _Buffer(ctypes.Structure):
    _fields_ = [("length", c_size_t), ("value", c_void_p)]

    @classmethod
    def of(cls, content: bytes) -> "_Buffer":
        """Return a buffer that keeps its content."""
        buffer = cls(len(content), ctypes.cast(c_char_p(content), c_void_p))
        buffer.content = content
        return buffer


class _Oid(ctypes.Structure):
    _fields_ = [("length", c_uint32), ("elements", c_void_p)]


class _OidSet(ctypes.Structure):
    _fields_ = [("count", c_size_t), ("elements", POINTER(_Oid))]


class _StoreElement(ctypes.Structure):
    _fields_ = [("key", c_char_p), ("value", c_char_p)]


class _Store(ctypes.Structure):
    _fields_ = [("count", c_uint32), ("elements", POINTER(_StoreElement))]


@cache
def _library() -> Any:
    """Return the library. Raises LoginRefused where the machine has none."""
    try:
        return ctypes.CDLL(LIBRARY)
    except OSError as error:
        raise LoginRefused(
            f"the login kerberos needs the library {LIBRARY}, which this machine does not have. Install it, such as "
            "Debian's libgssapi-krb5-2; the image of headrace has it."
        ) from error


@cache
def _mechanism() -> _Oid:
    """Return the identifier of Kerberos' mechanism."""
    return _Oid(len(_KRB5_MECHANISM), ctypes.cast(c_char_p(_KRB5_MECHANISM), c_void_p))


class GssContext:
    """The client's side of one login. Open it by `open_context`."""

    def __init__(self, service_name: c_void_p, credentials: c_void_p) -> None:
        self._service_name = service_name
        self._credentials = credentials
        self._context = c_void_p()
        self.is_complete = False

    def step(self, answer: bytes) -> bytes:
        """Take the other side's message, empty at first. Returns what to send. Raises GssFailed.

        The first step asks the KDC for a ticket of the service, unless the cache has one.
        """
        output = _Buffer()
        given = _Buffer.of(answer)
        flags = c_uint32(_MUTUAL_FLAG | _REPLAY_FLAG | _INTEGRITY_FLAG)
        try:
            status = _call(
                "gss_init_sec_context",
                self._credentials,
                byref(self._context),
                self._service_name,
                byref(_mechanism()),
                flags,
                c_uint32(0),
                None,
                byref(given),
                None,
                byref(output),
                None,
                None,
            )
        finally:
            # A failure may leave a message, too.
            message = _take(output)
        self.is_complete = not status & _CONTINUE_NEEDED
        return message

    def unwrap(self, message: bytes) -> bytes:
        """Check a message of the other side, and return what is in it. Raises GssFailed."""
        output = _Buffer()
        _call("gss_unwrap", self._context, byref(_Buffer.of(message)), byref(output), None, None)
        return _take(output)

    def wrap(self, message: bytes) -> bytes:
        """Protect a message by a checksum. Raises GssFailed."""
        output = _Buffer()
        _call("gss_wrap", self._context, c_int(0), c_uint32(0), byref(_Buffer.of(message)), None, byref(output))
        return _take(output)

    def close(self) -> None:
        """Let the library's memory go. May be called twice."""
        _library().gss_delete_sec_context(byref(c_uint32()), byref(self._context), None)


@contextmanager
def open_name(text: str, kind: str) -> Iterator[c_void_p]:
    """Import a name. `kind`: PRINCIPAL_NAME, or SERVICE_NAME, written `service@host`.

    Raises GssFailed, LoginRefused.
    """
    name = c_void_p()
    _call("gss_import_name", byref(_Buffer.of(text.encode())), c_void_p.in_dll(_library(), kind), byref(name))
    try:
        yield name
    finally:
        _library().gss_release_name(byref(c_uint32()), byref(name))


@contextmanager
def open_credentials(principal: c_void_p, keytab: Path, credential_cache: str) -> Iterator[c_void_p]:
    """Open a cache of tickets; the KDC is asked for its first one, or for another one where that is half-way over.

    `credential_cache`: its name, as krb5.conf(5) has it. Raises GssFailed.
    """
    elements = (_StoreElement * 2)(
        _StoreElement(b"client_keytab", f"FILE:{keytab}".encode()), _StoreElement(b"ccache", credential_cache.encode())
    )
    mechanisms = _OidSet(1, ctypes.pointer(_mechanism()))
    credentials = c_void_p()
    _call(
        "gss_acquire_cred_from",
        principal,
        c_uint32(0),
        byref(mechanisms),
        c_int(_INITIATE),
        byref(_Store(len(elements), elements)),
        byref(credentials),
        None,
        None,
    )
    try:
        yield credentials
    finally:
        _library().gss_release_cred(byref(c_uint32()), byref(credentials))


@contextmanager
def open_context(service_name: c_void_p, credentials: c_void_p) -> Iterator[GssContext]:
    """Begin a login at a service."""
    context = GssContext(service_name, credentials)
    try:
        yield context
    finally:
        context.close()


def destroy_credentials(credential_cache: str) -> None:
    """Remove a cache of tickets from memory, where there is one. Logins that use it go on without."""
    library = ctypes.CDLL(_KRB5_LIBRARY)
    context = c_void_p()
    if library.krb5_init_context(byref(context)):
        return
    cache = c_void_p()
    if not library.krb5_cc_resolve(context, credential_cache.encode(), byref(cache)):
        library.krb5_cc_destroy(context, cache)
    library.krb5_free_context(context)


def _call(function: str, *arguments: Any) -> int:
    """Call a function of the library, whose first argument takes the mechanism's code. Returns the status.

    Raises GssFailed.
    """
    minor = c_uint32()
    status: int = getattr(_library(), function)(byref(minor), *arguments) & 0xFFFFFFFF
    if not status & _FAILED:
        return status
    reason = _status_text(status, _OF_GSSAPI)
    code = ctypes.c_int32(minor.value).value
    if code:
        reason = _status_text(minor.value, _OF_MECHANISM)
    raise GssFailed(reason, code)


def _status_text(code: int, kind: int) -> str:
    output = _Buffer()
    more = c_uint32(0)
    _library().gss_display_status(byref(c_uint32()), c_uint32(code), c_int(kind), None, byref(more), byref(output))
    return _take(output).decode(errors="replace")


def _take(output: _Buffer) -> bytes:
    """Return what the library put into a buffer, and release the buffer."""
    if not output.value:
        return b""
    content = ctypes.string_at(output.value, output.length)
    _library().gss_release_buffer(byref(c_uint32()), byref(output))
    return content
