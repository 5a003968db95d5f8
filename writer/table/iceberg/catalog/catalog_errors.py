"""Says what a catalog's client raised in words: a login that is refused, a failure that may pass, and how long to wait.

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

from writer.core import logging
from writer.core.backoff import Backoff
from writer.core.catalog_table import CatalogTable
from writer.table.log.foreign_writes import one_line

_BACKOFF = Backoff(0.1, 5, jitter=0.5)
_REFUSED = (
    UnauthorizedError, ForbiddenError, AuthorizationExpiredError, OAuthError, NoCredentialsError,
    PartialCredentialsError,
)  # fmt: skip
_REFUSED_CODES = {  # of AWS
    "AccessDeniedException", "UnrecognizedClientException", "InvalidSignatureException", "ExpiredTokenException",
    "IncompleteSignatureException", "MissingAuthenticationTokenException",
}  # fmt: skip
_REFUSED_TEXT = "authentication failed"  # of PostgreSQL: its driver gives no code for what happens while it connects
_LASTING = (
    BadRequestError, NotInstalledError, NoRegionError, SSLError, InvalidSchema, InvalidURL, MissingSchema,
    ImportError, NotImplementedError, TypeError, ValueError,
)  # fmt: skip
_LOGINS = {
    "sql": "catalog.password, and the user in catalog.uri",
    "rest": "catalog.credential or catalog.token, or the credentials of AWS where rest.sigv4-enabled is set",
    "glue": "the credentials of AWS (environment, profile or role), and what they may do in Glue",
}
_REACH = "Look at the network, and at the section `catalog`."
_INSTALL = "Install its driver; PostgreSQL's comes with headrace[iceberg-postgres]."
_SECRETS = ("token", "credential", "secret-access-key", "session-token")  # ends of the names of settings


class CatalogUnanswered(OSError):
    """The catalog failed, or did not answer. Whether it did what was asked, its newest metadata says."""

    may_pass = True  # the same request may succeed a moment later
    pause_s = 0.0  # that the catalog asks for before the next request


class LoginRefused(CatalogUnanswered):
    """The catalog does not know who asks, or does not allow it."""

    may_pass = False


class CommitRefused(CatalogUnanswered):
    """The catalog refused a commit: the table is not as required any more, or this was committed a moment ago."""


class Retries:
    """The pauses between the tries of one operation. The log has one line of them."""

    def __init__(self, place: CatalogTable) -> None:
        self._place, self._tries = place, 0
        self._deadline = time.monotonic() + place.retry_timeout.total_seconds()

    def pause(self, error: CatalogUnanswered) -> None:
        """Wait before the next try, as long as the catalog asks. Raises the error once the time is over."""
        left = self._deadline - time.monotonic()
        if not error.may_pass or left <= 0:
            raise error
        if self._tries == 0:
            logging.warning("catalog_unanswered", table=str(self._place), error=str(error))
        time.sleep(min(max(_BACKOFF.random_delay_s(self._tries), error.pause_s), left))
        self._tries += 1


def described(error: Exception, place: CatalogTable) -> CatalogUnanswered:
    """Return what a catalog's client raised, with the names of catalog and table, and the fix."""
    causes = list(_causes(error))
    what = "an answer that is none of its protocol" if isinstance(error, ValidationError) else one_line(_of_sql(error))
    text = without_secrets(f"{type(error).__name__}: {what}", place).rstrip(".")
    about = f"catalog {place.catalog!r}"
    if any(map(_is_refused_login, causes)):
        login = _LOGINS[dict(place.settings)["type"]]
        return LoginRefused(f"{about} refused the login for table {place}: {text}. Correct {login}.")
    fix = _INSTALL if isinstance(error, ImportError | NotInstalledError) else _REACH
    found = CatalogUnanswered(f"{about} did not answer for table {place}: {text}. {fix}")
    found.may_pass = not isinstance(error, _LASTING) or isinstance(error, ValidationError)
    found.pause_s = max(map(_retry_after_s, causes))
    return found


def refused(error: Exception, place: CatalogTable) -> CommitRefused:
    """Return what a catalog said to a commit that it refused."""
    text = without_secrets(one_line(error), place)
    return CommitRefused(f"catalog {place.catalog!r} refuses commits to table {place}: {text}")


def without_secrets(text: str, place: CatalogTable) -> str:
    """Return a text without the secrets of a catalog's settings, which a server may send back."""
    for name, value in place.settings:
        if name.endswith(_SECRETS):
            text = _without(text, value, value.rpartition(":")[2])
        elif name == "uri" and (password := urlsplit(value).password):
            text = _without(text, password, unquote(password))
    return text


def _without(text: str, *secrets: str) -> str:
    for secret in secrets:
        text = text.replace(secret, "***") if secret else text
    return text


def _causes(error: BaseException | None) -> Iterator[BaseException]:
    while error is not None:
        yield error
        error = error.__cause__


def _of_sql(error: Exception) -> Exception:
    """Return the driver's error of one of SQLAlchemy, whose text has the statement and its values."""
    found = getattr(error, "orig", None)
    return found if isinstance(found, Exception) else error


def _is_refused_login(error: BaseException) -> bool:
    if isinstance(error, ClientError):
        return error.response["Error"].get("Code") in _REFUSED_CODES
    return isinstance(error, _REFUSED) or _REFUSED_TEXT in str(getattr(error, "orig", ""))


def _retry_after_s(error: BaseException) -> float:
    """Return what a catalog asks for in its answer: seconds, or a time."""
    response = getattr(error, "response", None)
    value = response.headers.get("Retry-After", "") if isinstance(response, Response) else ""
    if value.isdecimal():
        return float(value)
    try:
        return max((parsedate_to_datetime(value) - datetime.now(UTC)).total_seconds(), 0.0)
    except (TypeError, ValueError):  # none, or nonsense
        return 0.0
