"""Configuration sections `kafka.security.login` and `registry.login`: how a user logs in."""

import re
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated, Literal

from pydantic import AfterValidator, Field, SecretStr, model_validator

from headrace.writer.config.base import Strict, check_type
from headrace.writer.core.http import is_url
from headrace.writer.logins.exchange import SaslLogin
from headrace.writer.logins.http_login import BasicLogin, HttpLogin, TokenLogin
from headrace.writer.logins.kerberos import KerberosIdentity
from headrace.writer.logins.msk_iam import MskIamRequest
from headrace.writer.logins.oauth import ClientAuth, Grant, OAuthRequest, StaticToken
from headrace.writer.logins.sasl import BearerLogin, KerberosLogin, PlainLogin, ScramLogin
from headrace.writer.logins.secret import Secret
from headrace.writer.logins.token_source import TokenRequest

# Names and values of extensions (RFC 7628, 3.1); `auth` is the token itself.
_EXTENSION_NAME = re.compile(r"[A-Za-z]+")
_EXTENSION_VALUE = re.compile(r"[\x20-\x7e\t\r\n]+")


_REGION = re.compile(r"[a-z]{2,}(-[a-z]+)+-\d+")
# Of brokers, serverless or not: https://docs.aws.amazon.com/msk/latest/developerguide/msk-get-bootstrap-brokers.html
_MSK_HOST = re.compile(r"\.kafka(?:-serverless)?\.([a-z0-9-]+)\.amazonaws\.com(?:\.cn)?$")
_SERVICE = re.compile(r"[^/@\s]+")


def _absolute(path: Path) -> Path:
    if not path.is_absolute():
        raise ValueError(f"{path} is no absolute path; executors have other working directories")
    return path


def _check_user(user: str) -> str:
    if not user.isprintable():
        raise ValueError("it has a character that no name has, such as the end of a line; write the name, alone")
    return user


def _check_url(url: str) -> str:
    # It is not shown, for it may have a password.
    if not is_url(url):
        raise ValueError(
            "it is no http:// or https:// URL of a server, or it names a user; write it as https://id.example.com/token"
        )
    return url


def _check_region(region: str) -> str:
    if not _REGION.fullmatch(region):
        raise ValueError(f"{region!r} is no region of AWS; write it as eu-central-1")
    return region


def _check_service(service: str) -> str:
    if not _SERVICE.fullmatch(service):
        raise ValueError(f"{service!r} is no name of a service; of kafka/broker-1@EXAMPLE.COM it is kafka, alone")
    return service


_File = Annotated[Path, AfterValidator(_absolute)]
_User = Annotated[str, AfterValidator(_check_user)]
# Keys of the login oauth that say how the server is asked.
_OF_TOKEN_URL = (
    "client_id",
    "client_secret",
    "client_secret_file",
    "client_auth",
    "assertion_file",
    "grant",
    "scope",
    "parameters",
    "ca_file",
)
# Fields of the question that other keys give.
_OWN_PARAMETERS = (
    "grant_type",
    "scope",
    "client_id",
    "client_secret",
    "assertion",
    "client_assertion",
    "client_assertion_type",
)
_BY_REFERENCE = "take it from `${env:NAME}` or `${file:/path}`"
_READ_ANEW = "read at each login, so that it may rotate"


class _PasswordLogin(Strict):
    """A user with a password."""

    user: _User = Field(min_length=1, description="user name")
    password: SecretStr | None = Field(None, min_length=1, description=f"of the user; {_BY_REFERENCE}")
    password_file: _File | None = Field(None, description=f"instead: file with the password, {_READ_ANEW}")

    @model_validator(mode="after")
    def _has_a_password(self) -> "_PasswordLogin":
        if (self.password is None) == (self.password_file is None):
            raise ValueError("give 'password' or 'password_file', one of them")
        return self

    @property
    def secret(self) -> Secret:
        """The password."""
        return _secret("password", self.password, self.password_file)


class PlainSection(_PasswordLogin):
    """PLAIN: the password is sent as it is; use it with sasl_ssl alone."""

    type: Literal["plain"] = Field(description="user and password")

    @property
    def sasl(self) -> SaslLogin:
        """The exchange."""
        return PlainLogin(self.user, self.secret)


class ScramSection(_PasswordLogin):
    """SCRAM: the password is proven, not sent."""

    type: Literal["scram"] = Field(description="user and the proof of a password")
    mechanism: Literal["scram-sha-256", "scram-sha-512"] = Field(
        "scram-sha-512", description="as the broker has the user's password"
    )

    @property
    def sasl(self) -> SaslLogin:
        """The exchange."""
        return ScramLogin(
            self.user, self.secret, "SCRAM-SHA-256" if self.mechanism.endswith("256") else "SCRAM-SHA-512"
        )


class _OAuthSection(Strict):
    """A token of a server such as Keycloak, Okta or Entra ID, or one that stands in a file."""

    type: Literal["oauth"] = Field(description="a bearer token")
    token_url: Annotated[str, AfterValidator(_check_url)] | None = Field(
        None,
        description="where tokens are asked for, such as "
        "https://id.example.com/realms/data/protocol/openid-connect/token",
    )
    client_id: _User | None = Field(None, min_length=1, description="of the client that was registered there")
    client_secret: SecretStr | None = Field(None, min_length=1, description=f"of the client; {_BY_REFERENCE}")
    client_secret_file: _File | None = Field(None, description=f"instead: file with the secret, {_READ_ANEW}")
    client_auth: ClientAuth = Field(
        "basic",
        description="how id and secret are sent: basic: in the header; post: in the body, for servers that do "
        "not decode the header as RFC 6749 has it",
    )
    assertion_file: _File | None = Field(
        None,
        description=f"instead of a secret: file with a JWT that proves the client, such as the token of a "
        f"workload identity, {_READ_ANEW}",
    )
    grant: Grant = Field(
        "client_credentials",
        description="what is asked for: client_credentials, which an `assertion_file` may prove; "
        "jwt_bearer: the assertion is the grant itself (RFC 7523), beside a secret where the server wants one",
    )
    scope: str | None = Field(None, min_length=1, description="scopes, separated by blanks")
    parameters: dict[str, str] = Field(
        default_factory=dict, description="further fields of the question, such as audience; no secrets"
    )
    token_file: _File | None = Field(
        None, description="instead of `token_url`: file with the access token itself, which something else writes anew"
    )
    ca_file: _File | None = Field(
        None, description="PEM file with the authority of the token server's certificate; default: the machine's"
    )

    @model_validator(mode="after")
    def _has_one_source(self) -> "_OAuthSection":
        if (self.token_url is None) == (self.token_file is None):
            raise ValueError("give 'token_url' or 'token_file', one of them")
        if self.token_file is not None:
            extra = [name for name in _OF_TOKEN_URL if name in self.model_fields_set]
            if extra:
                raise ValueError(f"{extra[0]!r} goes with 'token_url'; the token in 'token_file' is there already")
        else:
            self._check_proofs()
        return self

    def _check_proofs(self) -> None:
        """Raise ValueError where nothing proves the client, or too much."""
        secrets = [secret for secret in (self.client_secret, self.client_secret_file) if secret is not None]
        has_assertion = self.assertion_file is not None
        if self.grant == "jwt_bearer":
            if not has_assertion:
                raise ValueError("grant jwt_bearer needs 'assertion_file'")
            if len(secrets) > 1:
                raise ValueError("give 'client_secret' or 'client_secret_file', not both")
        elif len(secrets) + has_assertion != 1:
            raise ValueError("give one of 'client_secret', 'client_secret_file' and 'assertion_file'")
        if secrets and self.client_id is None:
            raise ValueError("a client's secret needs 'client_id'")

    @model_validator(mode="after")
    def _parameters_are_further_ones(self) -> "_OAuthSection":
        for name in self.parameters:
            if name in _OWN_PARAMETERS:
                raise ValueError(f"parameter {name!r} has a key of its own; 'parameters' are further fields")
        return self

    @property
    def request(self) -> TokenRequest:
        """How its tokens are come by."""
        if self.token_file is not None:
            return StaticToken(_secret("token", None, self.token_file))
        secret = None
        if self.client_secret is not None or self.client_secret_file is not None:
            secret = _secret("client_secret", self.client_secret, self.client_secret_file)
        proof = None
        if self.assertion_file is not None:
            proof = _secret("assertion", None, self.assertion_file)
        return OAuthRequest(
            self.token_url or "",
            self.client_id,
            secret,
            self.client_auth,
            self.grant,
            proof,
            self.scope,
            tuple(sorted(self.parameters.items())),
            self.ca_file,
        )


class OAuthSection(_OAuthSection):
    """OAUTHBEARER."""

    extensions: dict[str, str] = Field(
        default_factory=dict,
        description="words for the broker beside the token, such as logicalCluster and identityPoolId",
    )

    @model_validator(mode="after")
    def _extensions_can_be_sent(self) -> "OAuthSection":
        for name, value in self.extensions.items():
            if not _EXTENSION_NAME.fullmatch(name) or name == "auth":
                raise ValueError(f"extension {name!r} cannot be sent: a name has letters alone, and is not auth")
            if not _EXTENSION_VALUE.fullmatch(value):
                raise ValueError(f"extension {name!r} cannot be sent: give it a value, of the characters of ASCII")
        return self

    @property
    def sasl(self) -> SaslLogin:
        """The exchange."""
        return BearerLogin(self.request, tuple(sorted(self.extensions.items())))


class MskIamSection(Strict):
    """IAM of Amazon MSK: the identity that AWS's standard chain finds on driver and executors."""

    type: Literal["msk_iam"] = Field(description="a signed request as token")
    region: Annotated[str, AfterValidator(_check_region)] = Field(description="of the cluster, such as eu-central-1")
    profile: str | None = Field(None, min_length=1, description="profile of AWS's files; default: the chain's own")

    @property
    def sasl(self) -> SaslLogin:
        """The exchange."""
        return BearerLogin(MskIamRequest(self.region, self.profile))

    def check_brokers(self, hosts: Sequence[str]) -> None:
        """Raise ValueError for a broker of MSK in another region: it would refuse each token, without a reason."""
        for host in hosts:
            match = _MSK_HOST.search(host)
            if match and match[1] != self.region:
                raise ValueError(
                    f"the broker {host} is in the region {match[1]}, and security.login.region is {self.region}; "
                    "name the region of the cluster"
                )


class KerberosSection(Strict):
    """Kerberos, by the system's GSSAPI library."""

    type: Literal["kerberos"] = Field(description="a ticket by keytab")
    principal: _User = Field(min_length=1, description="who logs in, such as headrace@EXAMPLE.COM")
    keytab: _File = Field(description="file with the principal's keys, on the driver and on every executor")
    service: Annotated[str, AfterValidator(_check_service)] = Field(
        "kafka", min_length=1, description="first part of the brokers' principal, as in kafka/host@REALM"
    )
    config_file: _File | None = Field(None, description="krb5.conf; default: the machine's")

    @property
    def sasl(self) -> SaslLogin:
        """The exchange."""
        return KerberosLogin(KerberosIdentity(self.principal, self.keytab, self.config_file), self.service)


LoginSection = Annotated[
    PlainSection | ScramSection | OAuthSection | MskIamSection | KerberosSection,
    Field(discriminator="type"),
    check_type(PlainSection, ScramSection, OAuthSection, MskIamSection, KerberosSection),
]


class BasicSection(_PasswordLogin):
    """HTTP basic authentication."""

    type: Literal["basic"] = Field(description="user and password")

    @model_validator(mode="after")
    def _can_be_sent(self) -> "BasicSection":
        if ":" in self.user:
            raise ValueError("'user' has a colon, which basic authentication cannot carry")
        return self

    @property
    def http(self) -> HttpLogin:
        """The header."""
        return BasicLogin(self.user, self.secret)


class BearerSection(Strict):
    """A bearer token that is there already."""

    type: Literal["bearer"] = Field(description="a token")
    token: SecretStr | None = Field(None, min_length=1, description=f"the token; {_BY_REFERENCE}")
    token_file: _File | None = Field(None, description="instead: file with the token, which something else writes anew")

    @model_validator(mode="after")
    def _has_a_token(self) -> "BearerSection":
        if (self.token is None) == (self.token_file is None):
            raise ValueError("give 'token' or 'token_file', one of them")
        return self

    @property
    def http(self) -> HttpLogin:
        """The header."""
        return TokenLogin(StaticToken(_secret("token", self.token, self.token_file)))


class RegistryOAuthSection(_OAuthSection):
    """A bearer token by OAuth."""

    @property
    def http(self) -> HttpLogin:
        """The header."""
        return TokenLogin(self.request)


RegistryLoginSection = Annotated[
    BasicSection | BearerSection | RegistryOAuthSection,
    Field(discriminator="type"),
    check_type(BasicSection, BearerSection, RegistryOAuthSection),
]


def _secret(key: str, text: SecretStr | None, file: Path | None) -> Secret:
    if file is not None:
        return Secret(f"{key}_file", file=file)
    return Secret(key, "" if text is None else text.get_secret_value())
