"""A receiver for hooks of type webhook: checks who sent a delivery, and does what is to be done once for each id.

Needs Python alone, and a file with the secret of the hook:

    python3 receiver.py --port 8090 --secret-file clicks.secret

It verifies signatures as https://www.standardwebhooks.com says. Put your own work into `process`.
"""

import argparse
import base64
import hashlib
import hmac
import json
import os
import time
from collections.abc import Mapping
from email.message import Message
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path
from typing import Any

# Seconds by which the sender's clock may differ; an older delivery may be a copy that is sent again.
TOLERANCE_S = 300
# Bytes of a delivery: a manifest takes about a kilobyte.
BODY_MAX = 1_000_000


def process(manifest: Mapping[str, Any]) -> None:
    """Do what is to be done when an hour is complete: here, say so. A repeat after a crash must do no harm."""
    bucket = "/".join(
        f"{column}={value}" for column, value in zip(manifest["columns"], manifest["bucket"], strict=True)
    )
    what = "is gone by retention" if manifest["retired"] else f"is complete with {manifest['rows']} rows"
    print(f"{bucket} version {manifest['version']} {what}", flush=True)


def read_key(secret: str) -> bytes:
    """Return the key that a secret is: base64 behind `whsec_`, else the text itself."""
    if secret.startswith("whsec_"):
        return base64.b64decode(secret.removeprefix("whsec_"))
    return secret.encode()


def verify(key: bytes, headers: Message, body: bytes, now_s: float) -> None:
    """Raise PermissionError for what the owner of the secret did not send just now."""
    sent_s = headers.get("webhook-timestamp", "")
    if not sent_s.isdecimal() or abs(now_s - int(sent_s)) > TOLERANCE_S:
        raise PermissionError("the timestamp is missing, or not of now")
    content = f"{headers.get('webhook-id', '')}.{sent_s}.".encode() + body
    expected = "v1," + base64.b64encode(hmac.digest(key, content, hashlib.sha256)).decode()
    # There are several while a secret is exchanged for another one.
    signatures = headers.get("webhook-signature", "").split(" ")
    if not any(hmac.compare_digest(signature.encode(), expected.encode()) for signature in signatures):
        raise PermissionError("the signature is not of this delivery")


class Deliveries:
    """Ids of the deliveries that were processed, in a file with one line for each."""

    def __init__(self, path: Path) -> None:
        """Go on with the file of an earlier run, if there is one."""
        self._path = path
        self._ids = set(path.read_text().split()) if path.exists() else set()

    def receive(self, delivery_id: str, manifest: Mapping[str, Any]) -> bool:
        """Process a delivery, and note that it was. Returns False for one that was processed before."""
        if delivery_id in self._ids:
            return False
        process(manifest)
        with self._path.open("a") as file:
            file.write(f"{delivery_id}\n")
            file.flush()
            os.fsync(file.fileno())
        self._ids.add(delivery_id)
        return True


class Handler(BaseHTTPRequestHandler):
    """Answers 200 for what is processed, 500 for what is not, 401 for what is not from the owner of the secret."""

    key: bytes
    deliveries: Deliveries

    def do_POST(self) -> None:
        """Take one delivery."""
        length = self.headers.get("Content-Length", "")
        if not length.isdecimal() or int(length) > BODY_MAX:
            self._answer(413, "give a Content-Length, of a megabyte at most")
            return
        body = self.rfile.read(int(length))
        try:
            verify(self.key, self.headers, body, time.time())
        except PermissionError as error:
            self._answer(401, str(error))
            return
        try:
            is_new = self.deliveries.receive(self.headers["webhook-id"], json.loads(body))
        except Exception:
            # headrace delivers again.
            self._answer(500, "not processed")
            raise
        self._answer(200, "processed" if is_new else "processed before")

    def _answer(self, status: int, text: str) -> None:
        self.send_response(status)
        self.send_header("Content-Length", str(len(text)))
        self.end_headers()
        self.wfile.write(text.encode())


def main() -> None:
    """Serve until it is interrupted."""
    parser = argparse.ArgumentParser(description="Receive deliveries of a hook of type webhook.")
    parser.add_argument("--port", type=int, default=8090, help="0: any free one")
    parser.add_argument("--ids", type=Path, default=Path("deliveries.txt"), help="where processed ids are kept")
    parser.add_argument("--secret-file", type=Path, required=True, help="a file with the secret of the hook")
    options = parser.parse_args()
    Handler.key = read_key(options.secret_file.read_text().strip())
    Handler.deliveries = Deliveries(options.ids)
    # One delivery after the other, so that no id is processed twice at once.
    server = HTTPServer(("127.0.0.1", options.port), Handler)
    print(f"receiving at http://127.0.0.1:{server.server_port}/clicks", flush=True)
    server.serve_forever()


if __name__ == "__main__":
    main()
