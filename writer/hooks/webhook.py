"""The webhook: POSTs a manifest to an HTTP server, signed by the Standard Webhooks scheme."""

import base64
import binascii
import hashlib
import hmac
import json
import time
from collections.abc import Callable, Mapping
from typing import Any

from headrace.writer.config.sections.hooks import Webhook
from headrace.writer.core.http import ask, host
from headrace.writer.hooks.base import HookFailed, Per, Receipt, SealedVersion

# What a secret in base64 begins with.
_BASE64_PREFIX = "whsec_"


class WebhookHook:
    """One server. Each version of each bucket comes, in order; the same one comes under the same id."""

    newest_only = False
    at_once = 1
    per: Per = "bucket"

    def __init__(self, settings: Webhook, now_s: Callable[[], float] = time.time) -> None:
        """`now_s`: seconds since 1970, for the signature."""
        self.name = settings.name
        self._settings = settings
        self._now_s = now_s
        self._url = settings.url.get_secret_value()
        # The path of the URL may be a secret.
        self.target = host(self._url)

    def check(self) -> bool:
        """Return False: a server of somebody's own may take anything for a delivery."""
        return False

    def deliver(self, sealed: SealedVersion, state: Mapping[str, Any]) -> Receipt:  # noqa: ARG002 - no request outlasts a call
        """POST the manifest."""
        body = json.dumps({**sealed.manifest.to_json(), "retired": sealed.retired}, ensure_ascii=False).encode()
        id_ = sealed.delivery_id
        headers = {"Content-Type": "application/json", "Idempotency-Key": id_, "webhook-id": id_}
        if self._settings.secret is not None:
            time_s = int(self._now_s())
            headers["webhook-timestamp"] = str(time_s)
            headers["webhook-signature"] = signature(self._settings.secret.get_secret_value(), id_, time_s, body)
        headers |= {name: value.get_secret_value() for name, value in self._settings.headers.items()}
        timeout_s = self._settings.timeout.total_seconds()
        answer = ask(self._url, method="POST", body=body, headers=headers, timeout_s=timeout_s)
        if not answer.ok:
            raise HookFailed(f"{self.target} answered {answer.summary()}", after=answer.after)
        return Receipt(f"answered {answer.status}")


def signature(secret: str, id_: str, time_s: int, body: bytes) -> str:
    """Return `v1,` and the HMAC-SHA256 over id, time and body, in base64 (www.standardwebhooks.com)."""
    digest = hmac.new(_key(secret), f"{id_}.{time_s}.".encode() + body, hashlib.sha256).digest()
    return f"v1,{base64.b64encode(digest).decode()}"


def _key(secret: str) -> bytes:
    if not secret.startswith(_BASE64_PREFIX):
        return secret.encode()
    try:
        return base64.b64decode(secret.removeprefix(_BASE64_PREFIX), validate=True)
    except binascii.Error as error:
        raise HookFailed(f"the secret begins with {_BASE64_PREFIX} and is no base64 after it; correct it") from error
