"""moto on a free port, which puts one object at a time, and changes one table of Glue. Its argument: an address.

moto looks whether an object is there and puts it in two steps, so two threads can both win; a store must not do that.
Of a table of Glue it does not look at all whether it still has the version that an update names, as Glue does.
"""

import sys
import threading
from collections.abc import Iterable
from typing import TYPE_CHECKING

from moto.core.exceptions import JsonRESTError
from moto.glue.responses import GlueResponse
from moto.moto_server.werkzeug_app import DomainDispatcherApplication, create_backend_app
from werkzeug.serving import run_simple

if TYPE_CHECKING:
    from wsgiref.types import StartResponse, WSGIEnvironment

_putting = threading.Lock()
_update = GlueResponse.update_table
_moto = DomainDispatcherApplication(create_backend_app)


def update_table(self: GlueResponse) -> str:
    """Refuse an update of a version that is not the table's."""
    asked = self.parameters
    newest = self.glue_backend.get_table(asked["DatabaseName"], asked["TableInput"]["Name"]).as_dict()["VersionId"]
    if asked.get("VersionId", newest) != newest:
        raise JsonRESTError("ConcurrentModificationException", f"the table has version {newest}")
    return _update(self)


GlueResponse.update_table = update_table  # type: ignore[method-assign]


def serve(environ: "WSGIEnvironment", start: "StartResponse") -> Iterable[bytes]:
    """Answer one request; those with a condition one after the other."""
    if "HTTP_IF_NONE_MATCH" not in environ and not environ.get("HTTP_X_AMZ_TARGET", "").startswith("AWSGlue"):
        return _moto(environ, start)
    with _putting:
        return _moto(environ, start)


if __name__ == "__main__":
    run_simple(sys.argv[1], 0, serve, threaded=True)
