"""Asks Kafka as Spark does when it plans a batch: by Java's client, in a JVM that lives for some questions.

Its login is another one than ours where Java finds an identity by itself: with IAM of MSK, and with Kerberos.
"""

import re
import shlex
import subprocess
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from datetime import timedelta
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from headrace.writer.clients import java_artifacts
from headrace.writer.core.errors import HeadraceError

_PY4J_FAILURE = "An error occurred while calling"
_CAUSE = "Caused by: "
_NO_RIGHTS = "TopicAuthorizationException"
_ENDS_WITHIN_S = 10
# A server may repeat what it was given. The log of the JVM hides it, too: writer/log4j2.properties.
_JWT = re.compile(r"eyJ[\w-]+\.[\w-]+\.[\w-]*")


class JavaRefused(HeadraceError):
    """Java's client of Kafka got no answer. The message is the reason that it gives."""


def ask_by_java(
    jars: Sequence[Path], jvm_options: Sequence[str], client: Mapping[str, str], topics: Sequence[str]
) -> tuple[int, list[str]]:
    """Ask for the brokers and for topics. Returns how many brokers there are, and the topics that Java may not ask for.

    `jvm_options`: as Spark takes them, with quotes; `client`: settings of Kafka's client; `topics`: of which some may
    not exist. Raises JavaRefused, JavaMissing, SparkUnsupported.
    """
    from py4j.protocol import Py4JError

    with _gateway(jars, jvm_options) as gateway:
        try:
            return _ask(gateway, client, topics)
        except Py4JError as error:
            raise JavaRefused(java_reason(str(error)) or type(error).__name__) from error


def client_settings(options: Mapping[str, str], bootstrap_servers: str, timeout: timedelta) -> dict[str, str]:
    """Return the settings of Java's client from the options of Spark's source. `timeout`: of a question."""
    timeout_ms = str(int(timeout.total_seconds() * 1000))
    return {
        **{name.removeprefix("kafka."): value for name, value in options.items()},
        "bootstrap.servers": bootstrap_servers,
        "request.timeout.ms": timeout_ms,
        "default.api.timeout.ms": timeout_ms,
    }


def java_reason(text: str) -> str:
    """Return what py4j passes on of an exception of Java: that of the last cause, without tokens.

    '' for a text that is none of its.
    """
    if not text.startswith(_PY4J_FAILURE):
        return ""
    lines = [line for line in text.splitlines() if line.startswith((": ", _CAUSE))]
    if not lines:
        return ""
    return _JWT.sub("<token>", lines[-1].removeprefix(_CAUSE).removeprefix(": "))


@contextmanager
def _gateway(jars: Sequence[Path], jvm_options: Sequence[str]) -> Iterator[Any]:
    """Run a JVM with Spark's jars; it ends with the block."""
    from py4j.java_gateway import GatewayParameters, JavaGateway, launch_gateway

    spec = find_spec("pyspark")
    assert spec is not None, "headrace depends on pyspark"
    assert spec.origin is not None, "pyspark is a package of files"
    spark_jars = Path(spec.origin).parent / "jars"
    port, token, process = launch_gateway(
        jarpath=str(next(spark_jars.glob("py4j-*.jar"))),
        # In the order in which Spark has them.
        classpath=":".join([f"{spark_jars}/*", *map(str, jars)]),
        javaopts=[word for option in jvm_options for word in shlex.split(option)],
        java_path=str(java_artifacts.spark_java()),
        die_on_exit=True,
        enable_auth=True,
        # What it logs is told by its exceptions, too.
        redirect_stdout=subprocess.DEVNULL,
        redirect_stderr=subprocess.DEVNULL,
        return_proc=True,
    )
    gateway = JavaGateway(gateway_parameters=GatewayParameters(port=port, auth_token=token))
    try:
        yield gateway
    finally:
        gateway.shutdown()
        # It ends with its input.
        process.stdin.close()
        try:
            process.wait(_ENDS_WITHIN_S)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()


def _ask(gateway: Any, client: Mapping[str, str], topics: Sequence[str]) -> tuple[int, list[str]]:
    """Ask for brokers and topics. Raises Py4JError."""
    from py4j.protocol import Py4JJavaError

    java = gateway.jvm
    settings = java.java.util.Properties()
    for name, value in client.items():
        settings.put(name, value)
    admin = java.org.apache.kafka.clients.admin.Admin.create(settings)
    forbidden = list[str]()
    try:
        brokers = admin.describeCluster().nodes().get().size()
        names = java.java.util.ArrayList()
        for topic in topics:
            names.add(topic)
        answers = admin.describeTopics(names).topicNameValues()
        for topic in topics:
            try:
                answers.get(topic).get()
            except Py4JJavaError as error:
                # A topic that is not there is a matter of other checks.
                if _NO_RIGHTS in java_reason(str(error)):
                    forbidden.append(topic)
        return int(brokers), forbidden
    finally:
        admin.close()
