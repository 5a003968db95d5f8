"""A role of the cloud in the place of keys: every client finds it, and uses what it is given for an hour at most.

MinIO stands for S3: it gives temporary credentials, and refuses a request without their token. The agent of EKS Pod
Identity is played by its contract: an address and a token's file in the environment.
https://docs.aws.amazon.com/sdkref/latest/guide/feature-container-credentials.html
"""

from collections.abc import Callable
from pathlib import Path

import boto3
import pytest

from tests.servers.objects import CREDENTIALS, ObjectServer, minio
from tests.servers.scripted import HttpRequest, Reply, serve_script
from tests.support import oracle
from tests.support.writer_process import Site

pytestmark = [pytest.mark.slow, pytest.mark.engines, pytest.mark.timeout(1500)]
WITHIN_S = 500
TOKEN = "a-token-that-the-cluster-signed"


def assume_role(server: ObjectServer) -> dict[str, str]:
    """Ask MinIO for temporary credentials. Returns them as the agent words them."""
    client = boto3.client(
        "sts",
        endpoint_url=server.url,
        aws_access_key_id=server.key,
        aws_secret_access_key=server.secret,
        region_name="us-east-1",
    )
    given = client.assume_role(RoleArn="arn:minio:iam:::role/headrace", RoleSessionName="headrace")["Credentials"]
    return {
        "AccessKeyId": given["AccessKeyId"],
        "SecretAccessKey": given["SecretAccessKey"],
        "Token": given["SessionToken"],
        "Expiration": f"{given['Expiration']:%Y-%m-%dT%H:%M:%SZ}",
    }


def run_once(site: Site, environment: dict[str, str]) -> str:
    """Run the writer to its end, however busy the machine is. Returns what it said."""
    writer = site.start("--once", env=environment)
    assert writer.wait(WITHIN_S) == 0, writer.output()
    return writer.output()


def test_a_writer_without_keys_works_by_the_role_of_its_pod(
    site: Site, topic: Callable[..., str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in CREDENTIALS:
        monkeypatch.delenv(name, raising=False)
    token = tmp_path / "token"
    token.write_text(TOKEN)
    (tmp_path / "store").mkdir()
    with minio(tmp_path / "store") as server:
        # An agent keeps them: clients wait a second for an answer.
        credentials = assume_role(server)

        def answer(asked: HttpRequest) -> Reply:
            if asked.headers.get("authorization") != TOKEN:
                return Reply(401)
            return Reply(body=credentials, headers={"Content-Type": "application/json"})

        with serve_script(answer) as agent:
            bucket = server.bucket()
            name = topic(2, prefix="clicks")
            site.overrides = {
                "checkpoints": f"{bucket}/checkpoints",
                "s3": {"endpoint": server.url, "region": "us-east-1"},
            }
            site.pipeline("clicks", [name], table={"location": f"{bucket}/clicks"})
            site.fill(name, 2_000)
            role = {
                "AWS_CONTAINER_CREDENTIALS_FULL_URI": f"{agent.url}/v1/credentials",
                "AWS_CONTAINER_AUTHORIZATION_TOKEN_FILE": str(token),
            }
            logs = run_once(site, role)
            site.fill(name, 500, seed=8)
            logs += run_once(site, role)
        server.download(f"{bucket}/clicks", tmp_path / "clicks")
        assert any(key.startswith("clicks/") for key in server.keys(f"{bucket}/checkpoints"))
    oracle.check(tmp_path / "clicks", "clicks", site.ends(name))
    assert {asked.headers.get("authorization") for asked in agent.asked} == {TOKEN}
    assert server.key not in logs
    assert server.secret not in logs
