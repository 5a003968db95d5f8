"""How a connection is encrypted and logged in: TLS, and one of the logins of SASL."""

import ssl
from dataclasses import dataclass
from pathlib import Path

from headrace.writer.kafka_reader.errors import AccessDenied
from headrace.writer.logins.exchange import SaslLogin


@dataclass(frozen=True)
class Tls:
    """What a broker's certificate is checked by, and what is shown to it. Files are PEM.

    `ca_file`: None for the machine's authorities. `client_cert_file`: a key without a password, and its certificates.
    """

    ca_file: Path | None = None
    client_cert_file: Path | None = None
    verify_hostname: bool = True

    def context(self) -> ssl.SSLContext:
        """Return the context of connections. Raises AccessDenied for files that cannot be used."""
        try:
            context = ssl.create_default_context(cafile=None if self.ca_file is None else str(self.ca_file))
            context.check_hostname = self.verify_hostname
            if self.client_cert_file is not None:
                context.load_cert_chain(str(self.client_cert_file), password=_no_password)
        # ssl.SSLError is an OSError.
        except (OSError, ValueError) as error:
            files = " and ".join(str(path) for path in (self.ca_file, self.client_cert_file) if path is not None)
            raise AccessDenied(
                f"kafka.security cannot be used with {files} ({error}). Give files that this machine can read: PEM "
                "certificates, and a key without a password."
            ) from error
        return context


@dataclass(frozen=True)
class Security:
    """TLS and a login; without both, plaintext."""

    tls: Tls | None = None
    login: SaslLogin | None = None

    def context(self) -> ssl.SSLContext | None:
        """Return the context of encrypted connections; None for plaintext. Raises AccessDenied."""
        return None if self.tls is None else self.tls.context()


def _no_password() -> str:
    raise ValueError("the key wants a password")
