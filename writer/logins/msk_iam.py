"""Tokens for Amazon MSK by IAM: a request to connect that is signed and sent as the token of OAUTHBEARER.

Source: https://github.com/aws/aws-msk-iam-sasl-signer-python, and AWS's Signature Version 4 for query strings.
"""

import base64
import threading
import time
from dataclasses import dataclass
from functools import cache
from typing import Any
from urllib.parse import quote

from headrace.writer.logins.errors import LoginRefused, LoginUnavailable
from headrace.writer.logins.token_source import Token

_ACTION = "kafka-cluster:Connect"
# As AWS's own signer. MSK takes none that lives longer.
_LIFE_S = 900
_lock = threading.Lock()


@dataclass(frozen=True)
class MskIamRequest:
    """A token of the identity that AWS's standard chain finds. `profile`: of AWS's files, None for the chain's own."""

    region: str
    profile: str | None = None
    life_s: int = _LIFE_S

    def ask(self) -> Token:
        """Sign one. Raises LoginRefused where there are no credentials, LoginUnavailable where they do not come now."""
        # The import is late: it takes a tenth of a second, and only this login needs it.
        from botocore.auth import SigV4QueryAuth
        from botocore.awsrequest import AWSRequest
        from botocore.exceptions import BotoCoreError, ClientError

        asked_s = time.time()
        try:
            # The chain may ask a server for credentials; botocore's session is for one thread.
            with _lock:
                credentials = _session(self.profile).get_credentials()
                frozen = None if credentials is None else credentials.get_frozen_credentials()
        except (BotoCoreError, ClientError) as error:
            raise LoginUnavailable(
                f"AWS's chain of credentials gives none for the login msk_iam ({error}). It is asked again."
            ) from error
        if frozen is None:
            raise LoginRefused(
                "the login msk_iam finds no credentials of AWS. Give the driver and the executors a role, or a profile."
            )
        url = f"https://kafka.{self.region}.amazonaws.com/?Action={quote(_ACTION, safe='')}"
        request = AWSRequest("GET", url)
        SigV4QueryAuth(frozen, "kafka-cluster", self.region, expires=self.life_s).add_auth(request)
        signed = f"{request.url}&User-Agent=headrace"
        text = base64.urlsafe_b64encode(signed.encode()).decode().rstrip("=")
        return Token(text, asked_s, asked_s + self.life_s)


@cache
def _session(profile: str | None) -> Any:
    """Return the session that keeps the credentials of a profile, and renews them."""
    import botocore.session

    return botocore.session.Session(profile=profile)
