"""What `validate` says of logins whose secrets others could read."""

from pathlib import Path
from typing import Any

import pytest
import yaml

from headrace.writer.config.loader import load
from headrace.writer.preflight.checks.login_check import check_logins

PLAIN = {"type": "plain", "user": "u", "password": "${env:LOGIN_WORD}"}
SECRET = "sesame-of-the-file"


def findings(tmp_path: Path, kafka: dict[str, Any], registry: dict[str, Any]) -> list[str]:
    path = tmp_path / "pipelines.yaml"
    pipeline = {"topics": ["a"], "table": {"location": "/lake/a"}, "event_time": {"field": "at"}}
    document = {
        "kafka": {"bootstrap_servers": "broker:9093", **kafka}, "registry": {"url": "https://registry", **registry},
        "checkpoints": "/checkpoints", "pipelines": {"a": pipeline, "b": {**pipeline, "topics": ["b"]}},
    }  # fmt: skip
    document["pipelines"]["b"]["table"] = {"location": "/lake/b"}
    path.write_text(yaml.safe_dump(document))
    messages = []
    for finding in check_logins(path, load(path), ["a", "b"]):
        assert (finding.check, finding.status) == ("login", "warning")
        assert finding.fix
        messages.append(finding.message)
    assert SECRET not in str(messages)
    return messages


def oauth(url: str) -> dict[str, Any]:
    return {"type": "oauth", "token_url": url, "client_id": "c", "client_secret": "${env:LOGIN_WORD}"}


@pytest.mark.parametrize(
    ("kafka", "registry", "says"),
    [
        ({}, {}, []),
        ({"security": {"protocol": "sasl_ssl", "login": PLAIN}}, {}, []),
        (
            {"security": {"protocol": "sasl_plaintext", "login": PLAIN}},
            {},
            ["sends its password over the network unenc"],
        ),
        (
            {
                "bootstrap_servers": "127.0.0.1:9093,[::1]:9093",
                "security": {"protocol": "sasl_plaintext", "login": PLAIN},
            },
            {},
            [],
        ),
        (
            {"security": {"protocol": "sasl_plaintext", "login": oauth("http://id.example.com/t")}},
            {},
            ["shows its tokens over", "kafka.security.login.token_url asks http://id.example.com unencrypted"],
        ),
        ({"security": {"protocol": "sasl_ssl", "login": oauth("http://localhost/t")}}, {}, []),
        (
            {"security": {"protocol": "sasl_ssl", "login": {**PLAIN, "password": SECRET}, "verify_hostname": False}},
            {},
            ["the secret of kafka.security.login.password stands in the file", "verify_hostname is false: each"],
        ),
        (
            {},
            {"url": "https://registry,http://second:8081", "login": {"type": "basic", "user": "u", "password": SECRET}},
            ["the secret of registry.login.password stands", "the registry at http://second:8081 goes over"],
        ),
        ({}, {"url": f"http://me:{SECRET}@second:8081"}, ["the registry at http://second:8081 goes over the network"]),
        ({}, {"login": oauth("http://id.example.com/t")}, ["registry.login.token_url asks http://id.example.com"]),
    ],
)
def test_a_secret_that_others_could_read_is_said_once(
    kafka: dict[str, Any],
    registry: dict[str, Any],
    says: list[str],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("LOGIN_WORD", "word")
    messages = findings(tmp_path, kafka, registry)
    assert len(messages) == len(says)
    for message, part in zip(messages, says, strict=True):
        assert part in message
