"""TLS for this process's own server, and for clients of it on the same machine."""

import ssl
from pathlib import Path

from headrace.writer.core.errors import file_error


def server_context(certificate: Path, key: Path) -> ssl.SSLContext:
    """Return a server's TLS context. Raises ConfigError for files that are no certificate and its key."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.minimum_version = ssl.TLSVersion.TLSv1_2
    try:
        context.load_cert_chain(certificate, key, password=_no_password)
    # ssl.SSLError is an OSError.
    except (OSError, ValueError) as error:
        why = getattr(error, "strerror", None) or getattr(error, "reason", None) or error
        raise file_error(
            f"http.certificate {certificate} and http.key {key} cannot be served ({why}). Give PEM files of a "
            "certificate and its private key, without a password.",
            error,
        ) from error
    return context


def client_context(certificate: str) -> ssl.SSLContext | None:
    """Return a context that trusts exactly one certificate, whatever names it has: the server is asked by its address.

    `certificate`: the file that the server itself serves from; None for an empty one. Raises OSError, ValueError.
    """
    if not certificate:
        return None
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.check_hostname = False
    # The certificate is its own authority.
    context.verify_flags |= ssl.VERIFY_X509_PARTIAL_CHAIN
    context.load_verify_locations(cadata=_first(Path(certificate).read_text(encoding="ascii")))
    return context


def _first(chain: str) -> str:
    """Return the server's own certificate, without those that lead to its authority."""
    marker = "-----END CERTIFICATE-----"
    return chain.partition(marker)[0] + marker + "\n"


def _no_password() -> str:
    raise ValueError("the key wants a password")
