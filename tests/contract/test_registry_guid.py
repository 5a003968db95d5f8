"""Schemas by GUID, as Confluent's registry serves them: its client, over HTTP, to a server that answers by its page.

No registry of the tests serves GUIDs. https://docs.confluent.io/platform/current/schema-registry/develop/api.html,
GET /schemas/guids/{string: guid}
"""

import json
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from uuid import UUID

import pytest

from headrace.writer.schemas.registry import ConfluentRegistry, SchemaNotFound

GUID = UUID("89791762-2336-4186-9674-299b90a802e2")
TEXT = '{"type": "record", "name": "R", "fields": [{"name": "a", "type": "int"}]}'


class Answers(BaseHTTPRequestHandler):
    def do_GET(self) -> None:
        found = self.path.partition("?")[0] == f"/schemas/guids/{GUID}"
        body = {"schema": TEXT, "schemaType": "AVRO"} if found else {"error_code": 40403, "message": "Schema not found"}
        content = json.dumps(body).encode()
        self.send_response(200 if found else 404)
        self.send_header("Content-Type", "application/vnd.schemaregistry.v1+json")
        self.send_header("Content-Length", str(len(content)))
        self.end_headers()
        self.wfile.write(content)

    def log_message(self, format: str, *args: object) -> None:  # noqa: A002 - the base class names it
        """Say nothing."""


@pytest.fixture
def url() -> Iterator[str]:
    with ThreadingHTTPServer(("127.0.0.1", 0), Answers) as server:
        thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.05})
        thread.start()
        yield f"http://127.0.0.1:{server.server_port}"
        server.shutdown()
        thread.join()


def test_a_schema_is_had_by_its_guid(url):
    registry = ConfluentRegistry(url)
    assert registry.schema(GUID.int) == TEXT
    with pytest.raises(SchemaNotFound, match=str(UUID(int=GUID.int + 1))):
        registry.schema(GUID.int + 1)
