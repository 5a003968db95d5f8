"""What Spark's own Kafka client gets for a login: options of its source, options of the JVM, jars."""

from pathlib import Path

import pytest

from headrace.writer.clients import java_artifacts
from headrace.writer.clients.spark_login import find_missing_credentials, jvm_options, source_options
from headrace.writer.config.sections.kafka_client import Security
from headrace.writer.driver import spark
from headrace.writer.logins import msk_iam
from headrace.writer.preflight.checks import host_checks
from headrace.writer.preflight.checks.spark_login_check import check_spark_login
from tests.servers.aws_credentials import credential_server, web_identity
from tests.support.sample_records import config

MSK = {"protocol": "sasl_ssl", "login": {"type": "msk_iam", "region": "eu-central-1"}}
KERBEROS = {
    "protocol": "sasl_ssl",
    "login": {
        "type": "kerberos", "principal": "headrace@EXAMPLE.COM", "keytab": "/keys/head race.keytab",
        "service": "broker", "config_file": "/etc/krb 5.conf",
    },
}  # fmt: skip


def test_msk_is_asked_by_amazon_s_handler_for_a_region() -> None:
    security = Security.model_validate(MSK)
    handler = "software.amazon.msk.auth.iam.IAMOAuthBearerLoginCallbackHandler"
    assert source_options(security) == {
        "kafka.security.protocol": "SASL_SSL",
        "kafka.sasl.mechanism": "OAUTHBEARER",
        "kafka.sasl.jaas.config": "org.apache.kafka.common.security.oauthbearer.OAuthBearerLoginModule required;",
        "kafka.sasl.login.callback.handler.class": handler,
        "kafka.sasl.client.callback.handler.class": handler,
    }
    assert jvm_options(security) == ["-Daws.region=eu-central-1"]
    profile = Security.model_validate({**MSK, "login": {**MSK["login"], "profile": "data"}})  # type: ignore[dict-item]
    assert source_options(profile)["kafka.sasl.jaas.config"].endswith('required awsProfileName="data";')


def test_credentials_of_aws_that_do_not_come_now_are_known_before_a_start(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    security = Security.model_validate(MSK)
    with credential_server() as server, web_identity(tmp_path, server):
        monkeypatch.setenv("AWS_MAX_ATTEMPTS", "1")
        msk_iam._session.cache_clear()
        server.failure = (503, "ServiceUnavailable")
        assert "chain of credentials gives none for the login msk_iam" in find_missing_credentials(security)
        # What is wrong, the start says.
        server.failure = (403, "AccessDenied")
        assert find_missing_credentials(security) == ""
        server.failure = None
        assert find_missing_credentials(security) == ""
        assert len(server.keys) == 1
        msk_iam._session.cache_clear()
    assert find_missing_credentials(Security.model_validate(KERBEROS)) == ""


def test_kerberos_is_java_s_module_with_the_same_keytab_and_krb5_conf() -> None:
    security = Security.model_validate(KERBEROS)
    assert source_options(security) == {
        "kafka.security.protocol": "SASL_SSL",
        "kafka.sasl.mechanism": "GSSAPI",
        "kafka.sasl.jaas.config": "com.sun.security.auth.module.Krb5LoginModule required useKeyTab=true storeKey=true "
        'doNotPrompt=true useTicketCache=false keyTab="/keys/head race.keytab" principal="headrace@EXAMPLE.COM";',
        "kafka.sasl.kerberos.service.name": "broker",
        "kafka.sasl.kerberos.min.time.before.relogin": "1000",
    }
    assert jvm_options(security) == ['-Djava.security.krb5.conf="/etc/krb 5.conf"']


@pytest.mark.parametrize(("reader", "has_options"), [("native", False), ("spark", True)])
def test_executors_have_the_options_where_they_read_by_java(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, reader: str, has_options: bool
) -> None:
    (tmp_path / "spark.jar").write_text("")
    monkeypatch.setenv("HEADRACE_JARS", str(tmp_path))
    kafka = {"bootstrap_servers": "broker:9093", "reader": reader, "security": KERBEROS}
    settings = spark._default_settings(config(tmp_path, sections={"kafka": kafka}))
    option = '-Djava.security.krb5.conf="/etc/krb 5.conf"'
    assert settings["spark.driver.extraJavaOptions"].endswith(option)
    assert (settings.get("spark.executor.extraJavaOptions") == option) == has_options


def test_amazon_s_jar_comes_last_and_for_its_login_alone(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """It has another version of the SDK than the parts for S3, which come first."""
    monkeypatch.setenv("HEADRACE_JARS", str(tmp_path))
    for name in ("auth-2.29.52", "spark-sql-kafka"):
        (tmp_path / f"{name}.jar").write_text("")
    with pytest.raises(java_artifacts.ArtifactError, match=r"holds no aws-msk-iam-auth-\*\.jar, which the login"):
        java_artifacts.spark_jars(msk_iam=True)
    (tmp_path / "aws-msk-iam-auth-2.3.2-all.jar").write_text("")
    names = ["auth-2.29.52.jar", "spark-sql-kafka.jar"]
    assert [jar.name for jar in java_artifacts.spark_jars()] == names
    assert [jar.name for jar in java_artifacts.spark_jars(msk_iam=True)] == [*names, "aws-msk-iam-auth-2.3.2-all.jar"]


def test_the_bundle_of_the_image_is_found_by_its_name() -> None:
    assert java_artifacts.find_bundle("spark-msk-iam") is java_artifacts.MSK_IAM


def test_validate_counts_amazon_s_jar_among_those_that_a_start_fetches(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("HEADRACE_JARS", raising=False)
    monkeypatch.setenv("HEADRACE_CACHE", str(tmp_path))
    without, with_msk = host_checks._jars(), host_checks._jars(msk_iam=True)
    assert (without.status, with_msk.status) == ("warning", "warning")
    sizes = [int(finding.message.rpartition("fetches ")[2].removesuffix(" MB")) for finding in (without, with_msk)]
    assert sizes[1] - sizes[0] == java_artifacts.MSK_IAM.megabytes
    assert "login at Amazon MSK" in with_msk.message


def test_the_login_of_java_is_not_tried_without_a_broker_or_its_jars(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    settings = config(tmp_path, sections={"kafka": {"bootstrap_servers": "broker:9093", "security": MSK}})
    monkeypatch.delenv("HEADRACE_JARS", raising=False)
    monkeypatch.setenv("HEADRACE_CACHE", str(tmp_path))
    for no_broker, reason in (("--offline", "--offline"), ("", "its jars are not here: see jars")):
        finding = check_spark_login(settings, [], no_broker)
        assert (finding.status, finding.message) == ("not_checked", f"not checked: {reason}")
