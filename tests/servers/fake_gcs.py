"""The objects of a fake-gcs-server, over its JSON API."""

import json
import re
import threading
import uuid
from base64 import b64decode
from dataclasses import replace
from http.client import HTTPConnection, HTTPException
from typing import Any
from urllib.parse import quote, urlencode, urlsplit

from tests.servers.cloud_http import Behaviour, CloudAnswer, CloudRequest, Refused
from tests.servers.cloud_objects import CloudObject, Listing, ListQuestion, NewObject

_HOP = ("connection", "content-length", "transfer-encoding", "keep-alive", "date", "server")
_BUCKET = re.compile(r"/storage/v1/b/([^/?]+)")
_CODES = {404: "NoSuchKey", 409: "BucketAlreadyExists", 412: "PreconditionFailed"}


class FakeGcs:
    """A backend. It passes requests of the JSON API on, as they are."""

    def __init__(self, url: str) -> None:
        self._host = urlsplit(url).netloc
        # What answers name instead of the server's own address.
        self.public_url = url
        self._local = threading.local()

    def answer(self, request: CloudRequest, behaviour: Behaviour) -> CloudAnswer:
        """Give a request of the JSON API on; of `behaviour`, a lie about conditions."""
        target = request.target
        if behaviour.overwrites:
            target = target.replace("ifGenerationMatch=", "ignored=")
        headers = {name: value for name, value in request.headers.items() if name.lower() not in (*_HOP, "host")}
        status, answered, body = self._ask(request.method, target, request.body, headers)
        kept = {name: value for name, value in answered.items() if name.lower() not in _HOP}
        for name, value in kept.items():
            if name.lower() == "location":
                kept[name] = value.replace(f"http://{self._host}", self.public_url)
        if request.method == "HEAD":
            kept["Content-Length"] = answered.get("Content-Length", "0")
        return CloudAnswer(status, body, kept)

    def create_bucket(self, bucket: str) -> None:
        """Make a bucket."""
        self._json("POST", "/storage/v1/b?project=headrace", json.dumps({"name": bucket}).encode())

    def put(self, new: NewObject) -> CloudObject:
        """Put an object."""
        edge = uuid.uuid4().hex
        about = {
            "name": new.name,
            "metadata": dict(new.metadata),
            "contentType": new.content_type or "application/octet-stream",
        }
        body = b"".join((
            f"--{edge}\r\nContent-Type: application/json\r\n\r\n{json.dumps(about)}\r\n".encode(),
            f"--{edge}\r\nContent-Type: application/octet-stream\r\n\r\n".encode(),
            new.content,
            f"\r\n--{edge}--\r\n".encode(),
        ))  # fmt: skip
        target = f"/upload/storage/v1/b/{new.bucket}/o?uploadType=multipart"
        if new.generation is not None:
            target += f"&ifGenerationMatch={new.generation}"
        headers = {"Content-Type": f"multipart/related; boundary={edge}"}
        return _object(self._json("POST", target, body, headers), new.content)

    def read(self, bucket: str, name: str) -> CloudObject:
        """Return an object: its description, then the content of that generation."""
        stored = self.look(bucket, name)
        return replace(stored, content=self.content(bucket, stored, None))

    def content(self, bucket: str, stored: CloudObject, bounds: tuple[int, int] | None) -> bytes:
        """Return the content of an object's generation, or a range of it."""
        headers = {} if bounds is None else {"Range": f"bytes={bounds[0]}-{bounds[1] - 1}"}
        target = f"{_target(bucket, stored.name)}?alt=media&generation={stored.generation}"
        status, _, content = self._ask("GET", target, b"", headers)
        if status not in (200, 206):
            raise Refused(status, _CODES.get(status, "InternalError"))
        return content

    def look(self, bucket: str, name: str) -> CloudObject:
        """Return an object without its content."""
        return _object(self._json("GET", _target(bucket, name)), b"")

    def delete(self, bucket: str, name: str) -> None:
        """Remove an object."""
        self._json("DELETE", _target(bucket, name))

    def list(self, bucket: str, question: ListQuestion) -> Listing:
        """Return a page of names. The server begins with a name, so the name itself is left out."""
        query = {
            "prefix": question.prefix,
            "delimiter": question.delimiter,
            "startOffset": question.after or question.start,
            "pageToken": question.token,
            "maxResults": str(question.size_max),
        }
        target = f"/storage/v1/b/{bucket}/o?{urlencode({name: value for name, value in query.items() if value})}"
        page = self._json("GET", target)
        objects = [_object(document, b"") for document in page.get("items", [])]
        folders = page.get("prefixes", [])
        return Listing(
            [stored for stored in objects if stored.name != question.after], folders, page.get("nextPageToken", "")
        )

    def _json(self, method: str, target: str, body: bytes = b"", headers: dict[str, str] | None = None) -> Any:
        status, _, content = self._ask(method, target, body, headers or {"Content-Type": "application/json"})
        if status == 404 and not self._has_bucket(target):
            raise Refused(404, "NoSuchBucket", "The specified bucket does not exist.")
        if status >= 300:
            raise Refused(status, _CODES.get(status, "InternalError"), content.decode(errors="replace")[:200])
        return json.loads(content) if content else {}

    def _has_bucket(self, target: str) -> bool:
        """Return whether the bucket of a request is there. The server's 404 says the same of buckets and objects."""
        bucket = _BUCKET.search(target)
        if bucket is None:
            return True
        status, _, _ = self._ask("GET", f"/storage/v1/b/{bucket[1]}", b"", {})
        return status != 404

    def _ask(self, method: str, target: str, body: bytes, headers: dict[str, str]) -> tuple[int, Any, bytes]:
        """Ask on this thread's connection, and once more on a new one if the server has closed it meanwhile."""
        for is_new in (False, True):
            connection = getattr(self._local, "connection", None)
            if is_new or connection is None:
                connection = HTTPConnection(self._host, timeout=60)
                self._local.connection = connection
            try:
                connection.request(method, target, body, headers)
                answer = connection.getresponse()
                return answer.status, answer.headers, answer.read()
            except (HTTPException, OSError):
                connection.close()
                self._local.connection = None
                if is_new:
                    raise
        raise AssertionError


def _target(bucket: str, name: str) -> str:
    return f"/storage/v1/b/{bucket}/o/{quote(name, safe='')}"


def _object(document: dict[str, Any], content: bytes) -> CloudObject:
    return CloudObject(
        document["name"],
        content,
        int(document["generation"]),
        int(document["size"]),
        b64decode(document["md5Hash"]),
        document.get("metadata") or {},
        document.get("contentType") or "application/octet-stream",
    )
