"""Tokens for Amazon MSK by IAM: a request to connect that is signed and sent as the token of OAUTHBEARER.

Source: https://github.com/aws/aws-msk-iam-sasl-signer-python, and AWS's Signature Version 4 for query strings.
"""

import base64
import logging
import os
import threading
import time
from dataclasses import dataclass
from functools import cache
from typing import Any
from urllib.parse import quote

from headrace.writer.logins.errors import LoginFailed, LoginRefused, LoginUnavailable
from headrace.writer.logins.hidden_secrets import hide_keys
from headrace.writer.logins.token_source import Token

_ACTION = "kafka-cluster:Connect"
# As AWS's own signer. MSK takes none that lives longer.
_LIFE_S = 900
_FAILED_STATUS = 500
# Of STS, to each of so many questions.
_ANSWER_WITHIN_S = 5
_ATTEMPTS = 2
# They log the trace of each failure, with all that a server said.
_LOGGERS = ("botocore.credentials", "botocore.utils")
# With these AWS refuses what it may accept later.
_PASSING = (
    "ExpiredTokenException",
    "IDPCommunicationError",
    "RequestLimitExceeded",
    "Throttling",
    "ThrottlingException",
    "TooManyRequestsException",
)
_lock = threading.Lock()


@dataclass(frozen=True)
class MskIamRequest:
    """A token of the identity that AWS's standard chain finds. `profile`: of AWS's files, None for the chain's own."""

    region: str
    profile: str | None = None
    life_s: int = _LIFE_S

    @property
    def advice(self) -> str:
        """What to look at where MSK refuses a token; it gives no reasons."""
        return (
            "Check kafka.security.login: region and profile; that the role of driver and executors may do "
            "kafka-cluster:Connect; and this machine's clock"
        )

    def ask(self) -> Token:
        """Sign one. Raises LoginRefused where there are no credentials, LoginUnavailable where they do not come now."""
        # The imports are late: they take a tenth of a second, and only this login needs them.
        from botocore.auth import SigV4QueryAuth
        from botocore.awsrequest import AWSRequest

        credentials = _credentials(self.profile, self.region)
        # A signature has the time in whole seconds.
        asked_s = float(int(time.time()))
        url = f"https://kafka.{self.region}.amazonaws.com/?Action={quote(_ACTION, safe='')}"
        request = AWSRequest("GET", url)
        SigV4QueryAuth(credentials, "kafka-cluster", self.region, expires=self.life_s).add_auth(request)
        signed = f"{request.url}&User-Agent=headrace"
        text = base64.urlsafe_b64encode(signed.encode()).decode().rstrip("=")
        return Token(text, asked_s, asked_s + self.life_s)


def _credentials(profile: str | None, region: str) -> Any:
    """Return the credentials as they are now. `region`: of the cluster. Raises LoginRefused, LoginUnavailable."""
    from botocore.credentials import RefreshableCredentials
    from botocore.exceptions import BotoCoreError, ClientError

    # The chain may ask a server for credentials; botocore's session is for one thread.
    with _lock:
        credentials = None
        try:
            credentials = _session(profile, region).get_credentials()
            if credentials is not None:
                return credentials.get_frozen_credentials()
            failure: LoginFailed = LoginRefused(
                "the login msk_iam finds no credentials of AWS. Give the driver and the executors a role, or name a "
                "profile in kafka.security.login.profile."
            )
        # The last ones: of files that are not there, and of answers without what they should have.
        except (BotoCoreError, ClientError, OSError, RuntimeError, ValueError, LookupError) as error:
            # It is raised below, without the cause: that may repeat what was sent.
            failure = _failure(error)
        finally:
            # What does not renew itself is read anew the next time: a file may have other keys then.
            if not isinstance(credentials, RefreshableCredentials):
                _session.cache_clear()
    raise failure


def _begin_anew() -> None:
    """Let a forked child have a session and a lock of its own: another thread of the parent may have had the lock."""
    global _lock  # noqa: PLW0603 - a lock cannot be opened by another thread
    _lock = threading.Lock()
    _session.cache_clear()


@cache
def _session(profile: str | None, region: str) -> Any:
    """Return the session that keeps the credentials of a profile, and renews them.

    `region`: of the STS that is asked for them, where neither the environment nor the profile names one. botocore would
    ask that of us-east-1, which a network of another region may not reach.
    """
    import botocore.session
    from botocore.config import Config

    for name in _LOGGERS:
        logging.getLogger(name).addFilter(_without_trace)
    session = botocore.session.Session(profile=profile)
    # botocore would wait for a silent STS for five minutes. It is asked again anyway.
    client_config = Config(
        connect_timeout=_ANSWER_WITHIN_S, read_timeout=_ANSWER_WITHIN_S, retries={"total_max_attempts": _ATTEMPTS}
    )
    session.set_default_client_config(client_config)
    if not _names_region(session):
        session.set_config_variable("region", os.environ.get("AWS_REGION") or region)
    return session


def _names_region(session: Any) -> bool:
    """Return whether AWS's variables or files name a region. A profile that is not there is told where it is used."""
    from botocore.exceptions import BotoCoreError

    try:
        return session.get_config_variable("region") is not None
    except BotoCoreError:
        return True


os.register_at_fork(after_in_child=_begin_anew)


def _without_trace(record: logging.LogRecord) -> bool:
    """Let a line of a library be logged without the trace of the error."""
    record.exc_info = None
    return True


def _reason(error: Exception) -> str:
    """Return what the chain says, without tokens and keys."""
    from botocore.exceptions import BotoCoreError, ClientError

    name = type(error).__name__
    if not isinstance(error, BotoCoreError | ClientError | OSError | RuntimeError):
        # Of an answer that cannot be read, the words are the answer's own.
        return name
    return hide_keys(f"{name}: {error}")


def _failure(error: Exception) -> LoginFailed:
    """Return the error for what the chain says, of which it repeats no secret."""
    from botocore import exceptions

    reason = _reason(error)
    is_wrong = isinstance(
        error,
        exceptions.ProfileNotFound
        | exceptions.ConfigParseError
        | exceptions.ConfigNotFound
        | exceptions.PartialCredentialsError
        | exceptions.InvalidConfigError
        | exceptions.UnknownCredentialError
        | exceptions.RefreshWithMFAUnsupportedError
        | FileNotFoundError
        | PermissionError,
    )
    if isinstance(error, exceptions.ClientError):
        status = error.response.get("ResponseMetadata", {}).get("HTTPStatusCode", _FAILED_STATUS)
        code = error.response.get("Error", {}).get("Code")
        is_wrong = status < _FAILED_STATUS and code not in _PASSING
    if is_wrong:
        return LoginRefused(
            f"AWS's chain of credentials fails for the login msk_iam ({reason}). Check kafka.security.login.profile, "
            "AWS's files and variables, and the role, on the driver and on every executor."
        )
    return LoginUnavailable(
        f"AWS's chain of credentials gives none for the login msk_iam ({reason}). It is asked again."
    )
