"""The client of a REST catalog whose requests end: pyiceberg's own waits for an answer without limit."""

from functools import partial

from pyiceberg.catalog.rest import RestCatalog
from requests import Session

_CONNECT_S, _ANSWER_S = 10.0, 30.0
NO_OTHER_RETRIES = {"rest.sigv4.max-retries": "0"}  # else ten, and as late as the server likes


class RestClient(RestCatalog):
    """A REST catalog. Each request ends in time, those for a token too."""

    def _config_headers(self, session: Session) -> None:
        super()._config_headers(session)  # what a session is set up by first, before it asks for a token
        session.request = partial(session.request, timeout=(_CONNECT_S, _ANSWER_S))  # type: ignore[method-assign]
