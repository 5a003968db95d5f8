"""Spark's own Kafka client logs in as at Amazon MSK, by Amazon's handler and the role of a web identity."""

from pathlib import Path

import pytest

from headrace.writer.demo.devstack.kafka import create_topics
from tests.servers.aws_credentials import credential_server, web_identity
from tests.servers.msk_proxy import REGION, msk_cluster
from tests.support.spark_source import send_for, spark_source

pytestmark = [pytest.mark.slow, pytest.mark.engines, pytest.mark.timeout(300)]
TOPIC = "events"


def test_spark_reads_over_sessions_of_msk(tmp_path: Path) -> None:
    with (
        msk_cluster(tmp_path / "broker", session_s=5) as cluster,
        credential_server() as credentials,
        web_identity(tmp_path, credentials),
    ):
        cluster.proxy.keys = credentials.keys
        create_topics(cluster.bootstrap, {TOPIC: 1})
        kafka = {
            "bootstrap_servers": cluster.iam,
            "security": {"protocol": "sasl_plaintext", "login": {"type": "msk_iam", "region": REGION}},
        }
        first = send_for(0.5, cluster.bootstrap, TOPIC)
        with spark_source(kafka, TOPIC, tmp_path) as source:
            source.wait_for_start()
            cluster.proxy.logins.clear()
            sent = first + send_for(12, cluster.bootstrap, TOPIC)
            assert source.finish() == sent
        assert len(cluster.proxy.logins) >= 2
        assert {login.agent.partition("/")[0] for login in cluster.proxy.logins} == {"aws-msk-iam-auth"}
        assert cluster.proxy.refusals == []
        assert cluster.proxy.expirations == 0
