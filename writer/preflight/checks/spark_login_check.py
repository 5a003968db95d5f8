"""Tries the login of Java's client of Kafka, which plans the offsets of batches in Spark."""

from collections.abc import Sequence

from headrace.writer.clients import java_artifacts, java_client, spark_login
from headrace.writer.config.pipelines import Config
from headrace.writer.config.sections.logins import MskIamSection
from headrace.writer.core.errors import HeadraceError
from headrace.writer.core.text import plural
from headrace.writer.preflight.checks.finding import Finding, failure, good, not_checked, wrong

_CHECK = "spark_login"
_CLIENT = "Java's client, which plans the offsets of batches in Spark,"
# Characters of Java's reason: Amazon's SDK names each place where it looked for credentials.
_REASON_MAX = 400


def has_own_login(config: Config) -> bool:
    """Return whether Java's client needs more than an address: TLS, or a login."""
    return config.kafka.security.protocol != "plaintext"


def needs_msk_jar(config: Config) -> bool:
    """Return whether Spark logs in by Amazon's handler."""
    return isinstance(config.kafka.security.login, MskIamSection)


def check_spark_login(config: Config, pipelines: Sequence[str], no_broker: str) -> Finding:
    """Let Java's client log in and ask for the pipelines' topics.

    `no_broker`: why the brokers are not asked; empty: they are.
    """
    if no_broker:
        return not_checked(_CHECK, no_broker)
    try:
        if java_artifacts.missing_bundles(msk_iam=needs_msk_jar(config)):
            return not_checked(_CHECK, "its jars are not here: see jars")
    except java_artifacts.SparkUnsupported:
        return not_checked(_CHECK, "there are no jars for this Spark: see versions")
    security = config.kafka.security
    topics = sorted({topic for name in pipelines for topic in config.pipelines[name].topics.names})
    try:
        options = spark_login.source_options(security)
        client = java_client.client_settings(options, config.kafka.bootstrap_servers, config.kafka.request_timeout)
        jars = java_artifacts.spark_jars(msk_iam=needs_msk_jar(config))
        brokers, forbidden = java_client.ask_by_java(jars, spark_login.jvm_options(security), client, topics)
    except java_client.JavaRefused as error:
        advice = "Check kafka.security" if security.login is None else security.login.sasl.advice
        reason = str(error)[:_REASON_MAX]
        return wrong(_CHECK, f"{_CLIENT} gets no answer ({reason})", f"{advice}.")
    except HeadraceError as error:
        return failure(_CHECK, error)
    if forbidden:
        return wrong(
            _CHECK,
            f"{_CLIENT} may not ask for {plural(len(forbidden), 'topic')}: {', '.join(forbidden)}",
            "Give the identity that Java logs in with the right Describe there (of MSK: kafka-cluster:DescribeTopic). "
            "It may be another identity than that of headrace's own connections.",
        )
    asked = f", and may ask for {plural(len(topics), 'topic')}" if topics else ""
    return good(_CHECK, f"{_CLIENT} has a login, sees {plural(brokers, 'broker')}{asked}")
