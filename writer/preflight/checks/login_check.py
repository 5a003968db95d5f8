"""Looks at logins as the file has them: secrets that others could read, in the file or on the network."""

from collections.abc import Iterator, Sequence
from pathlib import Path
from urllib.parse import urlsplit

from headrace.writer.config.loader import find_literal_secrets
from headrace.writer.config.pipelines import Config
from headrace.writer.config.sections.connections import Kafka
from headrace.writer.config.sections.logins import MskIamSection, OAuthSection, PlainSection, RegistryOAuthSection
from headrace.writer.config.sections.registry import Registry
from headrace.writer.core.http import host, is_near
from headrace.writer.kafka_reader.connection import addresses
from headrace.writer.preflight.checks.finding import Finding, doubtful

_CHECK = "login"


def check_logins(path: Path, config: Config, pipelines: Sequence[str]) -> Iterator[Finding]:
    """Yield what a person should know of the logins; nothing where all is well. No server is asked."""
    for key in find_literal_secrets(path, config):
        yield doubtful(
            _CHECK, f"the secret of {key} stands in the file", "Take it from `${env:NAME}` or `${file:/path}`."
        )
    yield from _broker_findings(config.kafka)
    registries = [config.registry_of(name) for name in pipelines]
    for index, registry in enumerate(registries):
        if registry not in registries[:index]:
            yield from _registry_findings(registry)


def _broker_findings(kafka: Kafka) -> Iterator[Finding]:
    security = kafka.security
    is_near_only = all(is_near(f"kafka://{broker}") for broker in addresses(kafka.bootstrap_servers))
    if not security.has_tls and not is_near_only:
        match security.login:
            case PlainSection():
                yield _plaintext_finding("kafka.security.login sends its password", "sasl_ssl")
            case OAuthSection() | MskIamSection():
                yield _plaintext_finding("kafka.security.login shows its tokens", "sasl_ssl")
    if isinstance(security.login, OAuthSection):
        yield from _token_findings("kafka.security.login", security.login)
    if security.has_tls and not security.verify_hostname:
        yield doubtful(
            _CHECK,
            "kafka.security.verify_hostname is false: each certificate of a trusted authority passes for that of "
            "every broker",
            "Give brokers certificates with their names, and take the key out.",
        )


def _registry_findings(registry: Registry) -> Iterator[Finding]:
    if isinstance(registry.login, RegistryOAuthSection):
        yield from _token_findings("registry.login", registry.login)
    for server in (registry.url or "").split(","):
        url = server.strip()
        has_login = registry.login is not None or "@" in urlsplit(url).netloc
        if has_login and url.startswith("http:") and not is_near(url):
            yield doubtful(
                _CHECK,
                f"the login of the registry at {host(url)} goes over the network unencrypted",
                "Give registry.url with https.",
            )


def _token_findings(key: str, login: OAuthSection | RegistryOAuthSection) -> Iterator[Finding]:
    url = login.token_url or ""
    if url.startswith("http:") and not is_near(url):
        yield doubtful(
            _CHECK,
            f"{key}.token_url asks {host(url)} unencrypted, so that others may read the client's proof and the tokens",
            "Give it with https.",
        )


def _plaintext_finding(subject: str, protocol: str) -> Finding:
    return doubtful(_CHECK, f"{subject} over the network unencrypted", f"Set kafka.security.protocol to {protocol}.")
