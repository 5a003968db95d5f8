"""The options of `headrace init` about logins, as keys of the configuration. A secret is a reference to it."""

import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated, Any, Literal

import typer

from headrace.writer.config.sections.kafka_client import Protocol
from headrace.writer.core.errors import ConfigError
from headrace.writer.output.command import Depends

_VARIABLE = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")

_SecurityProtocol = Annotated[
    Protocol,
    typer.Option(
        "--security-protocol",
        case_sensitive=False,
        metavar="<protocol>",
        help="How brokers are reached: plaintext, ssl, sasl_plaintext or sasl_ssl.",
    ),
]
_Mechanism = Literal["plain", "scram-sha-256", "scram-sha-512"]
_SaslMechanism = Annotated[
    _Mechanism | None,
    typer.Option(
        "--sasl-mechanism",
        case_sensitive=False,
        metavar="<mechanism>",
        help="How the user logs in: plain, scram-sha-256 or scram-sha-512. Default: scram-sha-512.",
        show_default=False,
    ),
]


@dataclass(frozen=True)
class BrokerAccess:
    """How brokers are reached, and by which password, as keys of the configuration."""

    protocol: Protocol = "plaintext"
    # A login by password; none of its keys where another login is meant.
    login: dict[str, Any] = field(default_factory=dict)
    # Of TLS.
    files: dict[str, Any] = field(default_factory=dict)

    def security(self, token_login: Mapping[str, Any]) -> dict[str, Any]:
        """Return the keys of kafka.security. `token_login`: the login by tokens, as `choose_token_login` returns it.

        Raises ConfigError where logins, files and protocol do not fit each other.
        """
        if self.login and token_login:
            raise ConfigError(
                "--username is of a login by password, and --token-url, --client-id, --scope and --token-file are of "
                "one by tokens. Give one login."
            )
        login = self.login or dict(token_login)
        self._check_protocol(has_login=bool(login))
        keys = dict(self.files)
        if login:
            keys = {"login": login, **keys}
        if self.protocol != "plaintext":
            keys = {"protocol": self.protocol, **keys}
        return keys

    def _check_protocol(self, *, has_login: bool) -> None:
        """Raise ConfigError where a login or files do not fit the protocol."""
        takes_login = self.protocol.startswith("sasl_")
        if takes_login and not has_login:
            raise ConfigError(
                f"--security-protocol {self.protocol} needs a login. Give --username, and --password-file or "
                "--password-env; or --token-url, --client-id, and --client-secret-file or --client-secret-env; or "
                "--token-file."
            )
        if has_login and not takes_login:
            raise ConfigError(
                f"A login, such as by --username or --token-url, does not fit --security-protocol {self.protocol}. "
                "Give sasl_ssl or sasl_plaintext."
            )
        if self.files and not self.protocol.endswith("ssl"):
            raise ConfigError(
                f"--ca-file and --client-cert-file do not fit --security-protocol {self.protocol}. Give ssl or "
                "sasl_ssl."
            )


def choose_broker_access(
    security_protocol: _SecurityProtocol = "plaintext",
    sasl_mechanism: _SaslMechanism = None,
    username: Annotated[
        str | None, typer.Option("--username", help="The user for Kafka, with a sasl_ protocol.")
    ] = None,
    password_file: Annotated[
        Path | None, typer.Option("--password-file", help="File with that user's password; the writer reads it, too.")
    ] = None,
    password_env: Annotated[
        str | None, typer.Option("--password-env", help="Instead: the environment variable with the password.")
    ] = None,
    ca_file: Annotated[
        Path | None, typer.Option("--ca-file", help="PEM file with the authorities of the brokers' certificates.")
    ] = None,
    client_cert_file: Annotated[
        Path | None,
        typer.Option("--client-cert-file", help="PEM file with a key and its certificates, to show to brokers."),
    ] = None,
) -> BrokerAccess:
    """Return how brokers are reached. Raises ConfigError for half of a login."""
    login = _password_keys(sasl_mechanism, username, _reference("--password", password_file, password_env))
    files = {"ca_file": _absolute(ca_file), "client_cert_file": _absolute(client_cert_file)}
    return BrokerAccess(security_protocol, login, _without_nulls(files))


def choose_token_login(
    token_url: Annotated[
        str | None, typer.Option("--token-url", help="Instead of a user: where tokens for Kafka are asked for (OAuth).")
    ] = None,
    client_id: Annotated[
        str | None, typer.Option("--client-id", help="The client that asks for tokens at --token-url.")
    ] = None,
    client_secret_file: Annotated[
        Path | None,
        typer.Option("--client-secret-file", help="File with that client's secret; the writer reads it, too."),
    ] = None,
    client_secret_env: Annotated[
        str | None, typer.Option("--client-secret-env", help="Instead: the environment variable with the secret.")
    ] = None,
    scope: Annotated[str | None, typer.Option("--scope", help="Scopes of the tokens, separated by blanks.")] = None,
    token_file: Annotated[
        Path | None,
        typer.Option(
            "--token-file", help="Instead of --token-url: file with the token, which is written anew in time."
        ),
    ] = None,
) -> dict[str, Any]:
    """Return the keys of a login by tokens; none where no option is of it. The configuration says what is missing.

    Raises ConfigError for a secret that is given twice, or is no name of a variable.
    """
    secret = {"client_secret": _reference("--client-secret", client_secret_file, client_secret_env)}
    if client_secret_file is not None:
        # It may rotate during a run, which a reference could not.
        secret = {"client_secret_file": _absolute(client_secret_file)}
    keys = {"token_url": token_url, "client_id": client_id, **secret, "scope": scope}
    keys = _without_nulls({**keys, "token_file": _absolute(token_file)})
    if not keys:
        return {}
    return {"type": "oauth", **keys}


def choose_registry_login(
    registry_username: Annotated[
        str | None, typer.Option("--registry-username", help="The user for the registry (basic authentication).")
    ] = None,
    registry_password_file: Annotated[
        Path | None, typer.Option("--registry-password-file", help="File with that user's password.")
    ] = None,
    registry_password_env: Annotated[
        str | None,
        typer.Option("--registry-password-env", help="Instead: the environment variable with the password."),
    ] = None,
    registry_ca_file: Annotated[
        Path | None, typer.Option("--registry-ca-file", help="PEM file with the authority of its certificate.")
    ] = None,
) -> dict[str, Any]:
    """Return keys of the registry: login, ca_file. Raises ConfigError for half of a login."""
    password = _reference("--registry-password", registry_password_file, registry_password_env)
    if (registry_username is None) != (password is None):
        raise ConfigError(
            "--registry-username goes with --registry-password-file or --registry-password-env. Give both, or neither."
        )
    login = None
    if registry_username is not None:
        login = {"type": "basic", "user": registry_username, "password": password}
    return _without_nulls({"login": login, "ca_file": _absolute(registry_ca_file)})


BrokerOptions = Annotated[BrokerAccess, Depends(choose_broker_access)]
TokenLoginOptions = Annotated[dict[str, Any], Depends(choose_token_login)]
RegistryLoginOptions = Annotated[dict[str, Any], Depends(choose_registry_login)]


def _password_keys(mechanism: _Mechanism | None, user: str | None, password: str | None) -> dict[str, Any]:
    """Return the keys of a login by password; none where no option is of it. Raises ConfigError for half of one."""
    if mechanism is None and user is None and password is None:
        return {}
    if user is None or password is None:
        raise ConfigError(
            "--username, --password-file, --password-env and --sasl-mechanism are of one login. Give --username, and "
            "--password-file or --password-env."
        )
    if mechanism == "plain":
        return {"type": "plain", "user": user, "password": password}
    return {"type": "scram", "mechanism": mechanism or "scram-sha-512", "user": user, "password": password}


def _reference(option: str, file: Path | None, variable: str | None) -> str | None:
    """Return `${file:…}` or `${env:…}`, as the configuration refers to a secret; None where neither is given."""
    if file is not None and variable is not None:
        raise ConfigError(f"{option}-file and {option}-env name one secret twice. Give one of them.")
    if variable is not None:
        if not _VARIABLE.fullmatch(variable):
            raise ConfigError(
                f"{option}-env takes the name of an environment variable, not the secret. Write {option}-env NAME."
            )
        return f"${{env:{variable}}}"
    if file is None:
        return None
    path = str(file.absolute())
    if "}" in path:
        raise ConfigError(f"{option}-file {path} has a }} in its name, which ends a reference. Rename the file.")
    return f"${{file:{path}}}"


def _absolute(path: Path | None) -> str | None:
    return None if path is None else str(path.absolute())


def _without_nulls(keys: dict[str, Any]) -> dict[str, Any]:
    return {key: value for key, value in keys.items() if value is not None}
