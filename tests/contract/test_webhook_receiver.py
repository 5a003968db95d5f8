"""The receiver of docs/examples/webhook, as a process of its own, with the deliveries of a real hook."""

import subprocess
import sys
import time
import urllib.error
import urllib.request
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest

from headrace.writer.hooks.dispatcher import deliveries
from headrace.writer.hooks.webhook import signature
from tests.support.sealed_lake import SealedLake

RECEIVER = Path(__file__).parents[2] / "docs" / "examples" / "webhook" / "receiver.py"
NOW = datetime(2026, 11, 20, 12, tzinfo=UTC)
SECRETS = ["a text of eight characters or more", "whsec_c2lnbmVkIGJ5IHRoZSBvd25lcg=="]
BODY = b'{"columns": ["hour"], "bucket": ["2026-11-20T05"], "version": 1, "rows": 3, "retired": false}'


@dataclass
class Receiver:
    """A receiver that runs."""

    url: str
    process: subprocess.Popen[str]

    def post(self, headers: Mapping[str, str], body: bytes = BODY) -> int:
        """Deliver a body, and return the status of the answer."""
        request = urllib.request.Request(self.url, body, dict(headers))
        try:
            with urllib.request.urlopen(request, timeout=20) as response:
                return int(response.status)
        except urllib.error.HTTPError as error:
            return error.code

    def end(self) -> list[str]:
        """Kill it, and return what it printed."""
        self.process.kill()
        return self.process.communicate()[0].splitlines()


@contextmanager
def receiver(root: Path, secret: str) -> Iterator[Receiver]:
    secret_file = root / "clicks.secret"
    secret_file.write_text(f"{secret}\n")
    command = [sys.executable, "-I", str(RECEIVER), "--port", "0", "--ids", str(root / "ids.txt")]
    command += ["--secret-file", str(secret_file)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True) as process:
        assert process.stdout is not None
        address = process.stdout.readline().rpartition(" ")[2].strip()
        try:
            yield Receiver(address, process)
        finally:
            process.kill()


def sign(secret: str, delivery_id: str, *, ago: timedelta = timedelta(0), body: bytes = BODY) -> dict[str, str]:
    time_s = int(time.time() - ago.total_seconds())
    signed = {"webhook-id": delivery_id, "webhook-timestamp": str(time_s)}
    return signed | {"webhook-signature": signature(secret, delivery_id, time_s, body)}


@pytest.mark.parametrize("secret", SECRETS)
def test_each_sealed_version_is_processed_once_also_by_a_receiver_that_was_killed(tmp_path: Path, secret: str) -> None:
    with receiver(tmp_path, secret) as first:
        lake = SealedLake(
            tmp_path, hooks=[{"type": "webhook", "url": first.url, "secret": secret, "start": "earliest"}]
        )
        (delivery,) = deliveries("clicks", lake.config)
        for hour, rows in ((5, 10), (6, 3)):
            lake.add(hour, rows)
            lake.seal(hour)
        assert delivery.run_round(NOW).delivered == 2
        lake.add(5, 2, minute=30)
        lake.seal(5)
        assert delivery.run_round(NOW).delivered == 3
        assert first.end() == [
            "hour=2026-11-20T05 version 1 is complete with 10 rows",
            "hour=2026-11-20T06 version 1 is complete with 3 rows",
            "hour=2026-11-20T05 version 2 is complete with 12 rows",
        ]
    ids = (tmp_path / "ids.txt").read_text().split()
    assert len(set(ids)) == len(ids) == 3
    with receiver(tmp_path, secret) as second:
        assert [second.post(sign(secret, delivery_id)) for delivery_id in ids] == [200] * 3
        assert second.post(sign(secret, "msg_new")) == 200
        assert second.end() == ["hour=2026-11-20T05 version 1 is complete with 3 rows"]


@pytest.mark.parametrize("secret", SECRETS)
def test_what_the_owner_of_the_secret_did_not_send_just_now_is_refused(tmp_path: Path, secret: str) -> None:
    good = sign(secret, "msg_1")
    refused = {
        "another secret": sign("another secret", "msg_1"),
        "another id": {**good, "webhook-id": "msg_2"},
        "another time": {**good, "webhook-timestamp": str(int(good["webhook-timestamp"]) - 1)},
        "another body": sign(secret, "msg_1", body=BODY + b" "),
        "of an hour ago": sign(secret, "msg_1", ago=timedelta(hours=1)),
        "of an hour to come": sign(secret, "msg_1", ago=timedelta(hours=-1)),
        "no time": {name: value for name, value in good.items() if name != "webhook-timestamp"},
        "no signature": {name: value for name, value in good.items() if name != "webhook-signature"},
        "no headers": {},
    }
    with receiver(tmp_path, secret) as server:
        assert {what: server.post(headers) for what, headers in refused.items()} == dict.fromkeys(refused, 401)
        assert not (tmp_path / "ids.txt").exists()
        two = {**good, "webhook-signature": f"v1,b3RoZXI= {good['webhook-signature']}"}
        assert server.post(two) == 200, "a secret that is being exchanged signs twice"
        assert server.post(sign(secret, "msg_3", body=b"no JSON"), b"no JSON") == 500
        assert len(server.end()) == 1
    assert (tmp_path / "ids.txt").read_text() == "msg_1\n"
