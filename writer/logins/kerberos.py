"""Tickets of Kerberos, by the system's GSSAPI library of MIT: no compiler is needed at install.

Sources: RFC 2744 (the C binding of GSSAPI), MIT's gssapi_ext.h (credential stores).
"""

import ctypes
import hashlib
import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from ctypes import POINTER, byref, c_char_p, c_int, c_size_t, c_uint32, c_void_p
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

from headrace.writer.logins.errors import LoginRefused, LoginUnavailable

_LIBRARY = "libgssapi_krb5.so.2"
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
# Codes of the mechanism for what may pass: no KDC answers (KRB5_KDC_UNREACH), none is found (KRB5_REALM_CANT_RESOLVE).
_PASSING = (2529639068, 2529639066)


@dataclass(frozen=True)
class KerberosIdentity:
    """Who logs in, and by which keys. `config`: a krb5.conf, None for the machine's."""

    principal: str
    keytab: Path
    config: Path | None = None


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
        return ctypes.CDLL(_LIBRARY)
    except OSError as error:
        raise LoginRefused(
            f"the login kerberos needs the library {_LIBRARY}, which this machine does not have. Install it, such as "
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
        """Take the broker's message, empty at first. Returns what to send. Raises LoginRefused, LoginUnavailable."""
        output = _Buffer()
        given = _Buffer.of(answer)
        flags = c_uint32(_MUTUAL_FLAG | _REPLAY_FLAG | _INTEGRITY_FLAG)
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
        self.is_complete = not status & _CONTINUE_NEEDED
        return _take(output)

    def unwrap(self, message: bytes) -> bytes:
        """Check a message of the broker, and return what is in it. Raises LoginRefused."""
        output = _Buffer()
        _call("gss_unwrap", self._context, byref(_Buffer.of(message)), byref(output), None, None)
        return _take(output)

    def wrap(self, message: bytes) -> bytes:
        """Protect a message by a checksum. Raises LoginRefused."""
        output = _Buffer()
        _call("gss_wrap", self._context, c_int(0), c_uint32(0), byref(_Buffer.of(message)), None, byref(output))
        return _take(output)

    def close(self) -> None:
        """Let the library's memory go."""
        minor = c_uint32()
        _library().gss_delete_sec_context(byref(minor), byref(self._context), None)


@contextmanager
def open_context(identity: KerberosIdentity, service: str, host: str) -> Iterator[GssContext]:
    """Begin a login at a service of a host. Raises LoginRefused, LoginUnavailable.

    Tickets are kept in this process's memory; the library asks for others by the keytab in time.
    """
    if identity.config is not None:
        # The library knows no other way.
        os.environ["KRB5_CONFIG"] = str(identity.config)
    _check_keytab(identity.keytab)
    with _name(identity.principal, "GSS_KRB5_NT_PRINCIPAL_NAME") as principal:
        credentials = _acquire(principal, identity)
        try:
            with _name(f"{service}@{host}", "GSS_C_NT_HOSTBASED_SERVICE") as service_name:
                context = GssContext(service_name, credentials)
                try:
                    yield context
                finally:
                    context.close()
        finally:
            _library().gss_release_cred(byref(c_uint32()), byref(credentials))


def _check_keytab(keytab: Path) -> None:
    try:
        keytab.open("rb").close()
    except OSError as error:
        raise LoginRefused(
            f"the keytab {keytab} cannot be read: {error.strerror}. Mount it on the driver and on every executor."
        ) from error


@contextmanager
def _name(text: str, kind: str) -> Iterator[c_void_p]:
    """Import a name. `kind`: the library's identifier of how it is written."""
    name = c_void_p()
    _call("gss_import_name", byref(_Buffer.of(text.encode())), c_void_p.in_dll(_library(), kind), byref(name))
    try:
        yield name
    finally:
        _library().gss_release_name(byref(c_uint32()), byref(name))


def _acquire(principal: c_void_p, identity: KerberosIdentity) -> c_void_p:
    """Return credentials of a principal, whose tickets this process keeps."""
    of_identity = hashlib.sha256(repr(identity).encode()).hexdigest()[:16]
    elements = (_StoreElement * 2)(
        _StoreElement(b"client_keytab", f"FILE:{identity.keytab}".encode()),
        _StoreElement(b"ccache", f"MEMORY:headrace-{of_identity}".encode()),
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
    return credentials


def _call(function: str, *arguments: Any) -> int:
    """Call a function of the library, whose first argument takes the mechanism's code. Returns the status."""
    minor = c_uint32()
    call: Callable[..., int] = getattr(_library(), function)
    status = call(byref(minor), *arguments) & 0xFFFFFFFF
    if not status & _FAILED:
        return status
    words = f"{_words(status, _OF_GSSAPI)}: {_words(minor.value, _OF_MECHANISM)}"
    if minor.value in _PASSING:
        raise LoginUnavailable(f"the login kerberos fails ({words}). Check that the KDC is up, and krb5.conf")
    raise LoginRefused(
        f"the login kerberos fails ({words}). Check kafka.security.login: principal, keytab, service; krb5.conf; and "
        "this machine's clock"
    )


def _words(code: int, kind: int) -> str:
    output = _Buffer()
    more = c_uint32(0)
    _library().gss_display_status(byref(c_uint32()), c_uint32(code), c_int(kind), None, byref(more), byref(output))
    return _take(output).decode(errors="replace")


def _take(output: _Buffer) -> bytes:
    """Return what the library put into a buffer, and release the buffer."""
    if not output.length:
        return b""
    content = ctypes.string_at(output.value, output.length)
    _library().gss_release_buffer(byref(c_uint32()), byref(output))
    return content
