"""The client of a REST catalog whose requests end: pyiceberg's own waits for an answer without limit."""

from collections.abc import Mapping
from functools import partial

from pyiceberg.catalog.rest import RestCatalog
from requests import Session

_CONNECT_S, _ANSWER_S = 10.0, 30.0


def rest_client(name: str, settings: Mapping[str, str]) -> RestCatalog:
    """Return the client of a REST catalog. Raises what pyiceberg's raises: it asks for the catalog's settings."""
    defaults = {
        "rest.sigv4.max-retries": "0",  # else ten, as late as the server likes
        "oauth2-server-uri": f"{settings['uri'].rstrip('/')}/v1/oauth/tokens",  # pyiceberg's default, of which it warns
    }
    return RestClient(name, **{**defaults, **settings})


class RestClient(RestCatalog):
    """A REST catalog. Each request ends in time, those for a token too."""

    def _config_headers(self, session: Session) -> None:
        super()._config_headers(session)  # what a session is set up by first, before it asks for a token
        session.request = partial(session.request, timeout=(_CONNECT_S, _ANSWER_S))  # type: ignore[method-assign]
