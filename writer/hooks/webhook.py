"""The webhook: POSTs a manifest to an HTTP server, signed by the Standard Webhooks scheme."""

import base64
import binascii
import hashlib
import hmac
import json
import time
from collections.abc import Callable, Mapping
from typing import Any

from writer.clients.http import ask, host
from writer.config.hooks import Webhook
from writer.hooks.base import Delivered, HookFailed, Per, Sealed

_MARKED = "whsec_"  # before a secret that is base64


class WebhookHook:
    """One server. Each version of each bucket comes, in order; the same one comes under the same id."""

    newest_only, at_once = False, 1
    per: Per = "bucket"

    def __init__(self, settings: Webhook, now_s: Callable[[], float] = time.time) -> None:
        """`now_s`: seconds since 1970, for the signature."""
        self.name, self._settings, self._now_s = settings.name, settings, now_s
        self._url = settings.url.get_secret_value()
        self.target = host(self._url)  # the path may be a secret

    def deliver(self, sealed: Sealed, state: Mapping[str, Any]) -> Delivered:  # noqa: ARG002 - nothing is ever under way
        """POST the manifest."""
        body = json.dumps({**sealed.manifest.to_json(), "retired": sealed.retired}, ensure_ascii=False).encode()
        id_ = message_id(sealed)
        headers = {"Content-Type": "application/json", "Idempotency-Key": id_, "webhook-id": id_}
        if self._settings.secret is not None:
            at_s = int(self._now_s())
            signed = signature(self._settings.secret.get_secret_value(), id_, at_s, body)
            headers |= {"webhook-timestamp": str(at_s), "webhook-signature": signed}
        own = {name: value.get_secret_value() for name, value in self._settings.headers.items()}
        timeout_s = self._settings.timeout.total_seconds()
        answer = ask(self._url, method="POST", body=body, headers={**headers, **own}, timeout_s=timeout_s)
        if not answer.ok:
            raise HookFailed(f"{self.target} answered {answer.shown()}", after=answer.after)
        return Delivered(f"answered {answer.status}")


def message_id(sealed: Sealed) -> str:
    """Return the id of one version of one bucket of one table, the same for each delivery."""
    id_ = json.dumps([sealed.table.id, sealed.manifest.bucket, sealed.manifest.version, sealed.entry])
    return f"msg_{hashlib.sha256(id_.encode()).hexdigest()[:32]}"


def signature(secret: str, id_: str, at_s: int, body: bytes) -> str:
    """Sign a message: `v1,` and the HMAC-SHA256 over id, time and body, in base64. (www.standardwebhooks.com)"""
    digest = hmac.new(_key(secret), f"{id_}.{at_s}.".encode() + body, hashlib.sha256).digest()
    return f"v1,{base64.b64encode(digest).decode()}"


def _key(secret: str) -> bytes:
    if not secret.startswith(_MARKED):
        return secret.encode()
    try:
        return base64.b64decode(secret.removeprefix(_MARKED), validate=True)
    except binascii.Error as error:
        raise HookFailed(f"the secret begins with {_MARKED} and is no base64 after it; correct it") from error
