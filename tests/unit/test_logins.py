"""How headrace logs in: what each client is told, what is refused, and what is never shown."""

import json
import re
import ssl
from collections.abc import Iterator
from datetime import timedelta
from pathlib import Path

import pytest
from hypothesis import given, strategies as st
from pydantic import ValidationError

from headrace.writer.batch.staging.bucket_folders import hive_folder, hive_value
from headrace.writer.clients.kafka import Cluster
from headrace.writer.clients.spark_login import jvm_options, source_options
from headrace.writer.config.sections.connections import Http, Kafka, Spark
from headrace.writer.config.sections.kafka_client import Security
from headrace.writer.config.sections.registry import Registry
from headrace.writer.core.errors import ConfigError
from headrace.writer.kafka_reader.security import Security as ConnectionSecurity, Tls
from headrace.writer.logins.http_login import BasicLogin
from headrace.writer.logins.sasl import ScramLogin
from headrace.writer.logins.secret import Secret
from headrace.writer.schemas.registry import (
    ApicurioRegistry,
    ConfluentRegistry,
    Login,
    RegistryUnreachable,
    SchemaNotFound,
    source,
)
from tests.servers.secured import Authority, behind_login
from tests.servers.token_server import CLIENT_ID, CLIENT_SECRET, TokenServer
from tests.support.sample_records import config

ROOT = Path(__file__).parents[2]
READER = Login(BasicLogin("reader", Secret("password", "pass:word")))
BASIC = {"type": "basic", "user": "x", "password": "z"}
USER = {"type": "scram", "user": "headrace", "password": "a-secret"}
LOGIN = {"protocol": "sasl_ssl", "login": USER}


def refused(section: type, about: dict[str, object]) -> str:
    with pytest.raises(ValidationError) as found:
        section.model_validate(about)
    return str(found.value)


def _oauth(**settings: object) -> dict[str, object]:
    return {"protocol": "sasl_ssl", "login": {"type": "oauth", **settings}}


# --- Kafka -------------------------------------------------------------------------------------------------------


def test_without_security_no_client_is_told_anything() -> None:
    assert source_options(Security()) == {}
    address = Kafka(bootstrap_servers="broker:9092").address
    assert (str(address), address.security) == ("broker:9092", ConnectionSecurity())


def test_spark_and_the_python_client_get_the_same_login() -> None:
    found = Security.model_validate(
        {
            "protocol": "sasl_ssl",
            "login": {**USER, "mechanism": "scram-sha-256"},
            "ca_file": "/etc/ca.pem",
            "client_cert_file": "/etc/client.pem",
            "verify_hostname": False,
        }
    )
    secret = Secret("password", "a-secret")
    assert found.native == ConnectionSecurity(
        Tls(Path("/etc/ca.pem"), Path("/etc/client.pem"), verify_hostname=False),
        ScramLogin("headrace", secret, "SCRAM-SHA-256"),
    )
    assert source_options(found) == {
        "kafka.security.protocol": "SASL_SSL", "kafka.sasl.mechanism": "SCRAM-SHA-256",
        "kafka.sasl.jaas.config": "org.apache.kafka.common.security.scram.ScramLoginModule required "
        'username="headrace" password="a-secret";',
        "kafka.ssl.endpoint.identification.algorithm": "", "kafka.ssl.truststore.type": "PEM",
        "kafka.ssl.truststore.location": "/etc/ca.pem", "kafka.ssl.keystore.type": "PEM",
        "kafka.ssl.keystore.location": "/etc/client.pem",
    }  # fmt: skip


@given(st.text(min_size=1, alphabet=st.characters(exclude_categories=["Cs"], exclude_characters="\0")))
def test_no_password_ends_the_word_that_it_stands_in(password: str) -> None:
    found = Security.model_validate({**LOGIN, "login": {**USER, "password": password}})
    text = source_options(found)["kafka.sasl.jaas.config"]
    # Java's StreamTokenizer ends a word at the end of a line, too.
    word = re.search(r'password="((?:[^"\\\n\r]|\\[^\n\r])*)";\Z', text)
    assert word is not None, text
    assert re.sub(r"\\(.)", lambda escape: {"n": "\n", "r": "\r"}.get(escape[1], escape[1]), word[1]) == password


@pytest.mark.parametrize(
    ("about", "says"),
    [
        ({"protocol": "sasl_ssl"}, "protocol sasl_ssl needs a 'login'"),
        ({"protocol": "sasl_ssl", "login": {"type": "plain", "user": "x"}}, "give 'password' or 'password_file'"),
        ({"protocol": "ssl", "login": USER}, "needs the protocol sasl_ssl or sasl_plaintext, not ssl"),
        ({"login": USER}, "not plaintext"),
        (_oauth(), "give 'token_url' or 'token_file'"),
        (_oauth(token_url="https://id/token"), "give one of 'client_secret', 'client_secret_file' and 'assertion"),
        (_oauth(token_url="https://id/token", client_secret="s"), "a client's secret needs 'client_id'"),
        (_oauth(token_url="https://id/token", client_id="c", client_secret="s", grant="jwt_bearer"), "needs 'assert"),
        (_oauth(token_file="/t", scope="kafka"), "'scope' goes with 'token_url'"),
        (_oauth(token_file="t"), "t is no absolute path"),
        (_oauth(token_file="/t", extensions={"auth": "x"}), "extension 'auth'"),
        (_oauth(token_file="/t", client_auth="basic"), "'client_auth' goes with 'token_url'"),
        (
            _oauth(token_url="https://id/token", client_id="c", client_secret="s", parameters={"scope": "x"}),
            "parameter 'scope' has a key of its own",
        ),
        (_oauth(token_url="https://u:p@id/token", client_id="c", client_secret="s"), "it names a user; write it as"),
        (
            {"ca_file": "/etc/ca.pem"},
            "'ca_file' and 'client_cert_file' need the protocol ssl or sasl_ssl, not plaintext",
        ),
        ({"protocol": "ssl", "ca_file": "ca.pem"}, "'ca_file' ca.pem is no absolute path"),
    ],
)
def test_half_a_login_is_refused(about: dict[str, object], says: str) -> None:
    assert says in refused(Security, about)


@pytest.mark.parametrize(
    ("login", "says"),
    [
        ({}, "login\n  Value error, 'type' is missing; known here: plain, scram, oauth, msk_iam, kerberos"),
        ({"type": "a-secret"}, "'type' is none of: plain, scram, oauth, msk_iam, kerberos"),
        ({"type": ["plain"]}, "'type' is none of: plain"),
        ({"type": "plain", "user": "x\0y", "password": "z"}, "it has a character that no name has"),
        ({"type": "oauth", "token_url": "https://id:99999/t"}, "it is no http:// or https:// URL of a server"),
        ({"type": "oauth", "token_url": "https://[::1/t"}, "it is no http:// or https:// URL of a server"),
        (
            {"type": "oauth", "token_file": "/t", "extensions": {"a-b": "x"}},
            "extension 'a-b' cannot be sent: a name has",
        ),
        (
            {"type": "oauth", "token_file": "/t", "extensions": {"ab": "x\x01y=z"}},
            "'ab' cannot be sent: give it a value",
        ),
        ({"type": "oauth", "token_file": "/t", "extensions": {"ab": ""}}, "'ab' cannot be sent: give it a value"),
        ({"type": "msk_iam", "region": "EU_Central"}, "'EU_Central' is no region of AWS; write it as eu-central-1"),
        ({"type": "kerberos", "principal": "a@B", "keytab": "/k", "service": "kafka/b@B"}, "it is kafka, alone"),
    ],
)
def test_a_key_of_a_login_that_cannot_be_used_is_named_with_its_fix(login: dict[str, object], says: str) -> None:
    message = refused(Security, {"protocol": "sasl_ssl", "login": login})
    assert says in message
    assert "a-secret" not in message


def test_the_region_of_msk_is_that_of_its_brokers() -> None:
    security = {"protocol": "sasl_ssl", "login": {"type": "msk_iam", "region": "eu-central-1"}}
    for host, is_refused in (
        ("b-1.clicks.abc.c2.kafka.eu-west-1.amazonaws.com", True),
        ("boot-abc.c2.kafka-serverless.us-east-1.amazonaws.com", True),
        ("b-1.clicks.abc.c2.kafka.eu-central-1.amazonaws.com", False),
        ("kafka.example.com", False),
    ):
        kafka = {"bootstrap_servers": f"{host}:9098", "security": security}
        if is_refused:
            assert "name the region of the cluster" in refused(Kafka, kafka)
        else:
            Kafka.model_validate(kafka)


def test_java_on_executors_cannot_have_the_driver_s_token(tmp_path: Path) -> None:
    login = _oauth(token_url="https://id/token", client_id="c", client_secret="a-secret")
    kafka = {"bootstrap_servers": "broker:9093", "security": login}
    for master, reader, is_refused in (
        ("k8s://https://kubernetes:443", "spark", True),
        ("local-cluster[2,1,1024]", "spark", True),
        ("local[*, 4]", "spark", False),
        ("local", "spark", False),
        ("k8s://https://kubernetes:443", "native", False),
    ):
        sections = {"kafka": {**kafka, "reader": reader}, "spark": {"master": master}}
        if not is_refused:
            assert config(tmp_path, sections=sections).kafka.security.login
            continue
        with pytest.raises(ValidationError, match=r"on its machine alone\. Leave") as error:
            config(tmp_path, sections=sections)
        assert "a-secret" not in "".join(fault["msg"] for fault in error.value.errors())


def test_java_asks_the_driver_for_tokens_and_never_learns_the_client_s_secret() -> None:
    with TokenServer() as server:
        login = _oauth(
            token_url=server.token_url,
            client_id=CLIENT_ID,
            client_secret=CLIENT_SECRET,
            extensions={"logicalCluster": 'x"y'},
        )
        security = Security.model_validate(login)
        options = source_options(security)
        assert source_options(security) == options
        assert len(server.tokens) == 1
    url = options["kafka.sasl.oauthbearer.token.endpoint.url"]
    assert url.startswith("http://127.0.0.1:")
    assert jvm_options(security) == [f"-Dorg.apache.kafka.sasl.oauthbearer.allowed.urls={url}"]
    jaas = options["kafka.sasl.jaas.config"]
    assert re.search(r'clientId="headrace" clientSecret="[\w-]{40,}" extension_logicalCluster="x\\"y";$', jaas)
    assert CLIENT_SECRET not in options.values()
    assert CLIENT_SECRET not in jaas.replace("\\\\", "\\").replace('\\"', '"')
    assert server.tokens[0] not in str(options)


def test_files_that_are_no_certificates_are_a_fault_of_the_configuration(tmp_path: Path, authority: Authority) -> None:
    (tmp_path / "garbage.pem").write_text("nothing")
    for about in (
        {"ca_file": "/nowhere/ca.pem"}, {"ca_file": str(tmp_path / "garbage.pem")},
        {"ca_file": str(authority.ca), "client_cert_file": "/nowhere/client.pem"},
    ):  # fmt: skip
        kafka = Kafka.model_validate({"bootstrap_servers": "127.0.0.1:1", "security": {"protocol": "ssl", **about}})
        with pytest.raises(ConfigError, match=r"kafka\.security cannot be used with .*\.pem"):
            Cluster(kafka.address, timedelta(seconds=1))


def test_a_login_is_in_no_word_that_anything_says_of_itself() -> None:
    kafka = Kafka.model_validate({"bootstrap_servers": "broker:9093", "security": LOGIN})
    registry = Registry.model_validate(
        {"url": "https://registry", "login": {"type": "basic", "user": "x", "password": "a-secret"}}
    )
    http = Http.model_validate({"expose_records": True, "token": "a-secret-of-sixteen"})
    assert kafka.address.security.login.password.read() == "a-secret"
    for one in (
        kafka,
        kafka.security,
        kafka.address,
        kafka.address.security,
        registry,
        http,
        Login(BasicLogin("x", Secret("password", "a-secret"))),
    ):
        for words in (repr(one), str(one), f"{one!s:>3}"):
            assert "a-secret" not in words
        if hasattr(one, "model_dump_json"):
            assert "a-secret" not in one.model_dump_json()
    assert "a-secret" not in refused(Security, {**LOGIN, "protocol": "ssl"})


def test_every_client_of_the_cluster_is_opened_with_the_security_of_the_file() -> None:
    """`bootstrap_servers` alone would reach a cluster without a login; it is for words only."""
    opening = re.compile(
        r"\b(Cluster|ClusterAddress|Consumer|Producer|AdminClient|Topic|client|next_records)\(\s*[\w.]*bootstrap_servers"
    )
    for package in ("writer", "recovery", "autoscaler"):
        for path in (ROOT / package).rglob("*.py"):
            assert not opening.search(path.read_text()), f"{path.name} opens a client without kafka.address"


# --- Spark -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "key",
    [
        "spark.hadoop.fs.s3a.secret.key", "spark.hadoop.fs.s3a.access.key", "spark.hadoop.fs.s3a.session.token",
        "spark.hadoop.fs.s3a.bucket.lake.secret.key", "spark.ssl.keyPassword", "spark.ssl.ui.keyStorePassword",
        "spark.authenticate.secret", "spark.hadoop.fs.azure.account.key.x.dfs.core.windows.net",
        "spark.kafka.clusters.x.sasl.jaas.config",
    ],
)  # fmt: skip
def test_a_secret_on_the_command_line_of_spark_is_refused(key: str) -> None:
    said = refused(Spark, {"conf": {key: "hidden-value"}})
    assert key in said
    assert "`ps` shows it" in said


@pytest.mark.parametrize(
    "key",
    [
        "spark.hadoop.fs.s3a.aws.credentials.provider", "spark.authenticate.secret.file", "spark.redaction.regex",
        "spark.kubernetes.driver.secrets.kafka", "spark.kubernetes.executor.secretKeyRef.KAFKA_PASSWORD",
        "spark.kubernetes.authenticate.oauthTokenFile", "spark.authenticate",
    ],
)  # fmt: skip
def test_a_spark_setting_that_only_names_a_secret_is_accepted(key: str) -> None:
    assert Spark(conf={key: "x"}).conf == {key: "x"}


# --- HTTP --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("about", "says"),
    [
        ({"expose_records": True}, "'expose_records' shows live records and needs a 'token'"),
        ({"expose_records": True, "token": "short"}, "at least 16"),
        ({"certificate": "/x.pem"}, "'certificate' and 'key' go together"),
        ({"key": "/x.key"}, "'certificate' and 'key' go together"),
    ],
)
def test_half_a_door_is_refused(about: dict[str, object], says: str) -> None:
    assert says in refused(Http, about)


def test_both_surfaces_listen_on_this_machine_only_unless_configured(tmp_path: Path) -> None:
    found = config(tmp_path)
    assert (Http().host, found.supervisor.host) == ("127.0.0.1", "127.0.0.1")
    assert (Http().expose_records, Http().token) == (False, None)


# --- the registry ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("about", "says"),
    [
        ({"url": "https://r", "login": {"type": "basic", "user": "x"}}, "give 'password' or 'password_file'"),
        ({"url": "https://y@r", "login": BASIC}, "that names no user itself"),
        ({"files": {1: "x.avsc"}, "login": BASIC}, "'login' needs a 'url'"),
        ({"files": {1: "x.avsc"}, "logical_cluster": "lsrc-1"}, "'logical_cluster' needs a 'url'"),
        ({"url": "https://r", "login": {**BASIC, "user": "x:y"}}, "has a colon"),
        ({"url": "https://r", "login": {"type": "bearer"}}, "give 'token' or 'token_file'"),
        ({"url": "https://r", "login": {"type": "oauth"}}, "give 'token_url' or 'token_file'"),
        ({"url": "https://r", "identity_pool": "a\nb"}, "should match pattern"),
    ],
)
def test_a_login_that_the_registry_could_not_be_shown_is_refused(about: dict[str, object], says: str) -> None:
    assert says in refused(Registry, about)


SCHEMA = json.dumps({"type": "record", "name": "Event", "fields": [{"name": "id", "type": "long"}]})


@pytest.fixture(scope="module")
def authority(tmp_path_factory: pytest.TempPathFactory) -> Authority:
    return Authority(tmp_path_factory.mktemp("certificates"))


@pytest.fixture(scope="module")
def door(authority: Authority) -> Iterator[str]:
    """HTTPS and a login, before a registry that is down: who gets through sees 502."""
    with behind_login("http://127.0.0.1:1/apis/ccompat/v7", authority, "reader", "pass:word") as url:
        yield url


def test_a_registry_behind_a_login_is_asked_with_it(authority: Authority, door: str) -> None:
    for password, status in (("pass:word", 502), ("wrong", 401)):
        about = {"url": door, "login": {**BASIC, "user": "reader", "password": password}, "ca_file": str(authority.ca)}
        found = source(Registry.model_validate(about))
        assert isinstance(found, ConfluentRegistry)
        with pytest.raises(RegistryUnreachable, match=str(status)) as said:
            found.schema(1)
        assert password not in str(said.value)
        own = ApicurioRegistry(found.core_url, "global", found.login)
        with pytest.raises((RegistryUnreachable, SchemaNotFound), match=str(status)):
            own.schema(1)


def test_a_registry_of_an_unknown_authority_is_not_believed(door: str) -> None:
    found = ConfluentRegistry(door, login=READER)
    with pytest.raises(RegistryUnreachable, match=r"(?i)certificate"):
        found.schema(1)
    with pytest.raises(RegistryUnreachable, match=r"(?i)certificate"):
        ApicurioRegistry(found.core_url, "global", found.login).schema(1)


def test_an_authority_that_cannot_be_read_is_named(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"registry\.ca_file .*none\.pem cannot be read"):
        ConfluentRegistry("https://registry", login=Login(ca=tmp_path / "none.pem"))
    assert isinstance(Login().trust_context(), ssl.SSLContext)


# --- what a producer may write -----------------------------------------------------------------------------------


@given(st.text())
def test_no_value_of_a_field_leaves_the_folder_of_its_bucket(value: str) -> None:
    folder = hive_folder("country", value)
    assert folder.startswith("country=")
    assert not set(folder) & {"/", "\\", "\0", "\n", ":", "?", "#", " ", '"', "'", "<", ">"}
    assert Path("/lake", folder).parent == Path("/lake")
    assert len(folder.encode()) <= 255
    if "~" not in folder[-17:-16]:
        assert hive_value(folder) == (value or None)


@pytest.mark.parametrize("value", ["..", ".", "../../etc/passwd", "/etc", "a/../../b", "%2e%2e%2f", "_delta_log", "\0"])
def test_a_value_that_means_a_place_is_only_a_name(value: str) -> None:
    folder = hive_folder("country", value)
    assert (Path("/lake") / folder).resolve().parent == Path("/lake")
    assert hive_value(folder) == value
