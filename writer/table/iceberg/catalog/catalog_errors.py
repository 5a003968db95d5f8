"""Describes what a catalog's client raised: a login that is refused, a failure that may pass, and how long to wait.

No text that is made here holds a secret of the catalog's settings.
"""

import time
from collections.abc import Iterator
from datetime import UTC, datetime
from email.utils import parsedate_to_datetime
from urllib.parse import unquote, urlsplit

from botocore.exceptions import ClientError, NoCredentialsError, NoRegionError, PartialCredentialsError
from pydantic import ValidationError
from pyiceberg.exceptions import (
    AuthorizationExpiredError,
    BadRequestError,
    ForbiddenError,
    NotInstalledError,
    OAuthError,
    UnauthorizedError,
)
from requests import Response
from requests.exceptions import InvalidSchema, InvalidURL, MissingSchema, SSLError

from headrace.writer.core import logging
from headrace.writer.core.backoff import Backoff
from headrace.writer.core.catalog_table import CatalogTable
from headrace.writer.table.log.foreign_writes import one_line

_BACKOFF = Backoff(0.1, 5, jitter=0.5)
_LOGIN_ERRORS = (
    UnauthorizedError,
    ForbiddenError,
    AuthorizationExpiredError,
    OAuthError,
    NoCredentialsError,
    PartialCredentialsError,
)
# Of AWS.
_LOGIN_CODES = {
    "AccessDeniedException",
    "UnrecognizedClientException",
    "InvalidSignatureException",
    "ExpiredTokenException",
    "IncompleteSignatureException",
    "MissingAuthenticationTokenException",
}
# Of PostgreSQL: its driver gives no code for what happens while it connects.
_LOGIN_TEXT = "authentication failed"
_PERMANENT_ERRORS = (
    BadRequestError,
    NotInstalledError,
    NoRegionError,
    SSLError,
    InvalidSchema,
    InvalidURL,
    MissingSchema,
    ImportError,
    NotImplementedError,
    TypeError,
    ValueError,
)
_LOGINS = {
    "sql": "catalog.password, and the user in catalog.uri",
    "rest": "catalog.credential or catalog.token, or the credentials of AWS where rest.sigv4-enabled is set",
    "glue": "the credentials of AWS (environment, profile or role), and what they may do in Glue",
}
_CHECK_NETWORK = "Look at the network, and at the section `catalog`."
_INSTALL_DRIVER = "Install its driver; PostgreSQL's comes with headrace[iceberg-postgres]."
# Names of settings that hold a secret end with one of these.
_SECRET_SUFFIXES = ("token", "credential", "secret-access-key", "session-token")


class CatalogUnanswered(OSError):
    """The catalog failed, or did not answer. Whether it did what was asked, its newest metadata says."""

    # The same request may succeed a moment later.
    may_pass = True
    # The catalog asks for this pause before the next request.
    pause_s = 0.0


class LoginRefused(CatalogUnanswered):
    """The catalog does not know who asks, or does not allow it."""

    may_pass = False


class CommitRefused(CatalogUnanswered):
    """The catalog refused a commit: the table is not as required any more, or this was committed a moment ago."""


class Retries:
    """The pauses between the tries of one operation. The log has one line of them."""

    def __init__(self, table: CatalogTable) -> None:
        self._table = table
        self._tries = 0
        self._deadline_s = time.monotonic() + table.retry_timeout.total_seconds()

    def pause(self, error: CatalogUnanswered) -> None:
        """Wait before the next try, as long as the catalog asks. Raises the error once the time is over."""
        remaining_s = self._deadline_s - time.monotonic()
        if not error.may_pass or remaining_s <= 0:
            raise error
        if self._tries == 0:
            logging.warning("catalog_unanswered", table=str(self._table), error=str(error))
        pause_s = max(_BACKOFF.random_delay_s(self._tries), error.pause_s)
        time.sleep(min(pause_s, remaining_s))
        self._tries += 1


def describe_error(error: Exception, table: CatalogTable) -> CatalogUnanswered:
    """Return what a catalog's client raised, with the names of catalog and table, and the fix."""
    causes = list(_causes(error))
    is_malformed = isinstance(error, ValidationError)
    answer = "an answer that is none of its protocol" if is_malformed else one_line(_driver_error(error))
    text = without_secrets(f"{type(error).__name__}: {answer}", table).rstrip(".")
    if any(map(_is_login_error, causes)):
        login = _LOGINS[dict(table.settings)["type"]]
        return LoginRefused(f"catalog {table.catalog!r} refused the login for table {table}: {text}. Correct {login}.")
    fix = _INSTALL_DRIVER if isinstance(error, ImportError | NotInstalledError) else _CHECK_NETWORK
    unanswered = CatalogUnanswered(f"catalog {table.catalog!r} did not answer for table {table}: {text}. {fix}")
    unanswered.may_pass = is_malformed or not isinstance(error, _PERMANENT_ERRORS)
    unanswered.pause_s = max(map(_retry_after_s, causes))
    return unanswered


def describe_refusal(error: Exception, table: CatalogTable) -> CommitRefused:
    """Return what a catalog said to a commit that it refused."""
    text = without_secrets(one_line(error), table)
    return CommitRefused(f"catalog {table.catalog!r} refuses commits to table {table}: {text}")


def without_secrets(text: str, table: CatalogTable) -> str:
    """Return a text without the secrets of a catalog's settings, which a server may send back."""
    for name, value in table.settings:
        if name.endswith(_SECRET_SUFFIXES):
            text = _mask(text, value, value.rpartition(":")[2])
        elif name == "uri":
            password = urlsplit(value).password or ""
            text = _mask(text, password, unquote(password))
    return text


def _mask(text: str, *secrets: str) -> str:
    for secret in secrets:
        if secret:
            text = text.replace(secret, "***")
    return text


def _causes(error: BaseException | None) -> Iterator[BaseException]:
    while error is not None:
        yield error
        error = error.__cause__


def _driver_error(error: Exception) -> Exception:
    """Return the driver's error of one of SQLAlchemy, whose text has the statement and its values."""
    original = getattr(error, "orig", None)
    return original if isinstance(original, Exception) else error


def _is_login_error(error: BaseException) -> bool:
    if isinstance(error, ClientError):
        return error.response["Error"].get("Code") in _LOGIN_CODES
    return isinstance(error, _LOGIN_ERRORS) or _LOGIN_TEXT in str(getattr(error, "orig", ""))


def _retry_after_s(error: BaseException) -> float:
    """Return how long a catalog asks to wait, in seconds. Its answer has seconds, or a time."""
    response = getattr(error, "response", None)
    if not isinstance(response, Response):
        return 0.0
    value = response.headers.get("Retry-After", "")
    if value.isdecimal():
        return float(value)
    try:
        return max((parsedate_to_datetime(value) - datetime.now(UTC)).total_seconds(), 0.0)
    except (TypeError, ValueError):
        # There is none, or it is nonsense.
        return 0.0
