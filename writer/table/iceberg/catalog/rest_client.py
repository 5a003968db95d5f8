"""The client of a REST catalog whose requests end: pyiceberg's own waits for an answer without limit."""

from collections.abc import Mapping
from functools import partial

from pyiceberg.catalog.rest import RestCatalog
from requests import Session

_CONNECT_TIMEOUT_S = 10.0
_ANSWER_TIMEOUT_S = 30.0


def rest_client(name: str, settings: Mapping[str, str]) -> RestCatalog:
    """Return the client of a REST catalog. Raises what pyiceberg's raises: it asks for the catalog's settings."""
    defaults = {
        # Otherwise there are ten, as late as the server likes.
        "rest.sigv4.max-retries": "0",
        # It is pyiceberg's default, of which it warns.
        "oauth2-server-uri": f"{settings['uri'].rstrip('/')}/v1/oauth/tokens",
    }
    return RestClient(name, **{**defaults, **settings})


class RestClient(RestCatalog):
    """A REST catalog. Each request ends in time, those for a token too."""

    def _config_headers(self, session: Session) -> None:
        # A session is set up by this method first, before it asks for a token.
        super()._config_headers(session)
        timeout = (_CONNECT_TIMEOUT_S, _ANSWER_TIMEOUT_S)
        session.request = partial(session.request, timeout=timeout)  # type: ignore[method-assign]
