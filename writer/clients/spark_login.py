"""How Spark's own Kafka client logs in, which plans the offsets of batches in the JVM.

A password stands in the options of Spark's Kafka source, in the driver's memory. It is not shown: Spark keeps what
`spark.redaction.regex` matches out of plans, UI and event log. Tokens come from an endpoint of this process, whose
secret is hidden in the same way.
"""

import re
from collections.abc import Mapping
from functools import cache

from headrace.writer.config.sections.kafka_client import Security
from headrace.writer.config.sections.logins import (
    KerberosSection,
    MskIamSection,
    OAuthSection,
    PlainSection,
    ScramSection,
)
from headrace.writer.logins.errors import LoginFailed, LoginRefused, LoginUnavailable
from headrace.writer.logins.msk_iam import MskIamRequest
from headrace.writer.logins.token_endpoint import TokenEndpoint
from headrace.writer.logins.token_source import TokenRequest

_MODULES = "org.apache.kafka.common.security"
_OAUTH_MODULE = f"{_MODULES}.oauthbearer.OAuthBearerLoginModule"
_OAUTH_HANDLER = f"{_MODULES}.oauthbearer.OAuthBearerLoginCallbackHandler"
_MSK_HANDLER = "software.amazon.msk.auth.iam.IAMOAuthBearerLoginCallbackHandler"
_NO_LOGIN = "Spark's own client of Kafka has no login"
# What Java says where a KDC does not answer, and where its tickets ended meanwhile.
_SILENT_KDC = re.compile(r"Connection refused|timed out|No route to host|Failed to find any Kerberos tgt")


@cache
def _token_endpoint(request: TokenRequest) -> TokenEndpoint:
    """Return this process's endpoint for a login; it runs from the first call on."""
    return TokenEndpoint(request)


def jvm_options(security: Security) -> list[str]:
    """Return options of the JVM that the login needs."""
    match security.login:
        case OAuthSection() as login:
            # Clients from Kafka 3.9.1 on ask no other server.
            return [f"-Dorg.apache.kafka.sasl.oauthbearer.allowed.urls={_token_endpoint(login.request).url}"]
        case MskIamSection() as login:
            # Amazon's handler asks AWS's SDK for the region, and takes it from nowhere else.
            return [f"-Daws.region={login.region}"]
        case KerberosSection() as login if login.config_file is not None:
            return [f'-Djava.security.krb5.conf="{login.config_file}"']
        case _:
            return []


def source_options(security: Security) -> dict[str, str]:
    """Return the options of Spark's Kafka source. Raises LoginRefused, LoginUnavailable without a secret or a token."""
    if security.protocol == "plaintext":
        return {}
    options = {"security.protocol": security.protocol.upper(), **_login_options(security)}
    if security.has_tls and not security.verify_hostname:
        options["ssl.endpoint.identification.algorithm"] = ""
    if security.ca_file is not None:
        options |= {"ssl.truststore.type": "PEM", "ssl.truststore.location": str(security.ca_file)}
    if security.client_cert_file is not None:
        options |= {"ssl.keystore.type": "PEM", "ssl.keystore.location": str(security.client_cert_file)}
    return {f"kafka.{name}": value for name, value in options.items()}


def login_failure(security: Security, text: str, reason: str) -> LoginFailed:
    """Return the error for a login that Java's client could not make.

    Java says the same of a wrong login and of one that nobody gives now. `text`: its error with all causes; `reason`:
    the words of the last cause.
    """
    match security.login:
        case OAuthSection() | MskIamSection() as login:
            try:
                _ask_for_token(login)
            except LoginFailed as error:
                return type(error)(f"{_NO_LOGIN}: {error}")
            advice = login.sasl.advice
        case KerberosSection() as login if _SILENT_KDC.search(text):
            return LoginUnavailable(f"{_NO_LOGIN} ({reason}). Check that the KDC is up, and krb5.conf")
        case None:
            advice = "Check kafka.security"
        case login:
            advice = login.sasl.advice
    return LoginRefused(f"{_NO_LOGIN} ({reason}). {advice}")


def find_missing_credentials(security: Security) -> str:
    """Return why a driver that starts would have no credentials of AWS now; empty: it has them, or needs none.

    A token of ours lives for 15 minutes without them, and Java's client of a new driver asks at once. What is wrong is
    left to the start.
    """
    if not isinstance(security.login, MskIamSection):
        return ""
    try:
        _ask_for_token(security.login)
    except LoginUnavailable as error:
        return str(error)
    except LoginRefused:
        return ""
    return ""


def _ask_for_token(login: OAuthSection | MskIamSection) -> None:
    """Look whether there is a token for Java now. Raises LoginRefused, LoginUnavailable."""
    if isinstance(login, OAuthSection):
        _token_endpoint(login.request).check()
    else:
        # Amazon's handler looks in the same places.
        MskIamRequest(login.region, login.profile).ask()


def _login_options(security: Security) -> dict[str, str]:
    match security.login:
        case PlainSection() as login:
            return _jaas("PLAIN", f"{_MODULES}.plain.PlainLoginModule", _user(login))
        case ScramSection() as login:
            return _jaas(login.sasl.mechanism, f"{_MODULES}.scram.ScramLoginModule", _user(login))
        case OAuthSection() as login:
            endpoint = _token_endpoint(login.request)
            endpoint.check()
            client = {"clientId": endpoint.client_id, "clientSecret": endpoint.client_secret}
            extensions = {f"extension_{name}": value for name, value in login.extensions.items()}
            return {
                **_jaas("OAUTHBEARER", _OAUTH_MODULE, {**client, **extensions}),
                "sasl.login.callback.handler.class": _OAUTH_HANDLER,
                "sasl.oauthbearer.token.endpoint.url": endpoint.url,
                # Tokens may be short.
                "sasl.login.refresh.min.period.seconds": "1",
                "sasl.login.refresh.buffer.seconds": "1",
                # A login that gets no token asks again for so long before it fails. Then Java rests for ten seconds,
                # which nothing shortens. The pause after the n-th question is 2^n of the first; the endpoint holds
                # questions up.
                "sasl.login.retry.backoff.ms": "10",
                "sasl.login.retry.backoff.max.ms": "20000",
            }
        case MskIamSection() as login:
            profile = {} if login.profile is None else {"awsProfileName": login.profile}
            return {
                **_jaas("OAUTHBEARER", _OAUTH_MODULE, profile),
                "sasl.login.callback.handler.class": _MSK_HANDLER,
                "sasl.client.callback.handler.class": _MSK_HANDLER,
            }
        case KerberosSection() as login:
            values = {"keyTab": str(login.keytab), "principal": login.principal}
            flags = "useKeyTab=true storeKey=true doNotPrompt=true useTicketCache=false"
            return {
                **_jaas("GSSAPI", "com.sun.security.auth.module.Krb5LoginModule", values, flags),
                "sasl.kerberos.service.name": login.service,
                # Tickets that end within a minute are renewed, too.
                "sasl.kerberos.min.time.before.relogin": "1000",
            }
        case None:
            return {}


def _user(login: PlainSection | ScramSection) -> dict[str, str]:
    return {"username": login.user, "password": login.secret.read()}


def _jaas(mechanism: str, module: str, values: Mapping[str, str], flags: str = "") -> dict[str, str]:
    terms = [module, "required", *flags.split(), *(f"{name}={_quote_value(value)}" for name, value in values.items())]
    return {"sasl.mechanism": mechanism, "sasl.jaas.config": f"{' '.join(terms)};"}


def _quote_value(text: str) -> str:
    """Write a word as Java's parser of login modules reads it back. The end of a line would end it there."""
    escaped = text.replace("\\", "\\\\").replace('"', '\\"').replace("\n", "\\n").replace("\r", "\\r")
    return f'"{escaped}"'
