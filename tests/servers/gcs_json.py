"""The JSON API of Google Cloud Storage, which Arrow and Google's own clients speak."""

import json
import re
import uuid
from base64 import b64encode
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any
from urllib.parse import unquote

import google_crc32c

from tests.servers.cloud_http import Behaviour, CloudAnswer, CloudRequest, Refused, json_answer, slice_answer
from tests.servers.cloud_objects import CloudObject, ListQuestion, MemoryBackend, NewObject, put_as_asked

_OBJECT = re.compile(r"/(?:download/)?storage/v1/b/([^/]+)/o/([^/]+)(?:/(rewriteTo|copyTo)/b/([^/]+)/o/([^/]+))?")
_COMPOSE = re.compile(r"/storage/v1/b/([^/]+)/o/([^/]+)/compose")
_BUCKET = re.compile(r"/storage/v1/b/([^/]+)")
_NAMES = re.compile(r"/storage/v1/b/([^/]+)/o")
_UPLOAD = re.compile(r"/(?:resumable/)?upload/storage/v1/b/([^/]+)/o")
_RANGE = re.compile(r"bytes (?:(\d+)-(\d+)|\*)/(\d+|\*)")


@dataclass
class Session:
    """A resumable upload. `new`: the object that it makes, with the content that has come."""

    new: NewObject


class JsonApi:
    """Answers from objects in memory."""

    def __init__(self, backend: MemoryBackend) -> None:
        self._backend = backend
        self._sessions: dict[str, Session] = {}

    def answer(self, request: CloudRequest, behaviour: Behaviour) -> CloudAnswer:
        """Answer a request. Raises Refused."""
        if request.path == "/storage/v1/b":
            return self._answer_buckets(request)
        if match := _COMPOSE.fullmatch(request.path):
            return self._compose(request, *_unquoted(match), behaviour)
        if match := _OBJECT.fullmatch(request.path):
            return self._answer_object(request, *_unquoted(match), behaviour)
        if match := _NAMES.fullmatch(request.path):
            return self._list(request, unquote(match[1]), behaviour)
        if match := _UPLOAD.fullmatch(request.path):
            return self._upload(request, unquote(match[1]), behaviour)
        if match := _BUCKET.fullmatch(request.path):
            return self._answer_bucket(request, unquote(match[1]))
        raise Refused(404, "notFound")

    def _answer_buckets(self, request: CloudRequest) -> CloudAnswer:
        if request.method == "POST":
            name = json.loads(request.body)["name"]
            self._backend.create_bucket(name)
            return json_answer(_bucket_document(name))
        return json_answer({"kind": "storage#buckets", "items": [_bucket_document(n) for n in self._backend.buckets]})

    def _answer_bucket(self, request: CloudRequest, bucket: str) -> CloudAnswer:
        self._backend.objects(bucket)
        if request.method == "DELETE":
            self._backend.remove_bucket(bucket)
            return CloudAnswer(204)
        return json_answer(_bucket_document(bucket))

    def _answer_object(
        self, request: CloudRequest, bucket: str, name: str, copies: str, to_bucket: str, to_name: str,
        behaviour: Behaviour,
    ) -> CloudAnswer:  # fmt: skip
        stored = self._backend.read(bucket, name)
        if copies:
            fields = json.loads(request.body or b"{}")
            new = NewObject(
                to_bucket, to_name, stored.content, fields.get("metadata", stored.metadata), stored.content_type,
                _generation(request, "ifGenerationMatch"),
            )  # fmt: skip
            copy = _document(to_bucket, put_as_asked(self._backend, new, behaviour))
            if copies == "copyTo":
                return json_answer(copy)
            size = str(stored.size)
            done = {"totalBytesRewritten": size, "objectSize": size, "done": True, "resource": copy}
            return json_answer({"kind": "storage#rewriteResponse", **done})
        wanted = _generation(request, "ifGenerationMatch")
        if wanted is not None and wanted != stored.generation:
            raise Refused(412, "conditionNotMet")
        if _generation(request, "generation") not in (None, stored.generation):
            raise Refused(404, "notFound")
        if request.method == "DELETE":
            self._backend.delete(bucket, name)
            return CloudAnswer(204)
        if request.method == "GET" and request.query.get("alt") == "media":
            return slice_answer(stored.content, _media_headers(stored), request.header("Range"))
        if request.method in ("PATCH", "PUT"):
            metadata = json.loads(request.body).get("metadata", {})
            new = NewObject(bucket, name, stored.content, metadata, stored.content_type)
            stored = self._backend.put(new)
        return json_answer(_document(bucket, stored))

    def _list(self, request: CloudRequest, bucket: str, behaviour: Behaviour) -> CloudAnswer:
        query = request.query
        question = ListQuestion(
            prefix=query.get("prefix", ""),
            delimiter=query.get("delimiter", ""),
            start=query.get("startOffset", ""),
            token=query.get("pageToken", ""),
            size_max=min(int(query.get("maxResults") or 1_000), behaviour.page_max),
        )
        page = self._backend.list(bucket, question)
        document: dict[str, Any] = {"kind": "storage#objects"}
        document["items"] = [_document(bucket, stored) for stored in page.objects]
        document["prefixes"] = page.folders
        if page.token:
            document["nextPageToken"] = page.token
        return json_answer(document)

    def _compose(self, request: CloudRequest, bucket: str, name: str, behaviour: Behaviour) -> CloudAnswer:
        fields = json.loads(request.body)
        content = b"".join(self._backend.read(bucket, each["name"]).content for each in fields["sourceObjects"])
        about = fields.get("destination", {})
        new = NewObject(
            bucket, name, content, about.get("metadata", {}), about.get("contentType", ""),
            _generation(request, "ifGenerationMatch"),
        )  # fmt: skip
        return json_answer(_document(bucket, put_as_asked(self._backend, new, behaviour)))

    def _upload(self, request: CloudRequest, bucket: str, behaviour: Behaviour) -> CloudAnswer:
        if session_id := request.query.get("upload_id"):
            return self._continue_upload(request, session_id, behaviour)
        kind = request.query.get("uploadType") or request.header("X-Goog-Upload-Protocol")
        name = request.query.get("name", "")
        generation = _generation(request, "ifGenerationMatch")
        if kind == "media":
            new = NewObject(bucket, name, request.body, {}, request.header("Content-Type"), generation)
            return json_answer(_document(bucket, put_as_asked(self._backend, new, behaviour)))
        if kind == "multipart":
            about, content = _parts(request)
            new = _described(about, bucket, name, content, generation)
            return json_answer(_document(bucket, put_as_asked(self._backend, new, behaviour)))
        if kind != "resumable":
            raise Refused(400, "invalid", f"invalid uploadType: {kind!r}")
        self._backend.objects(bucket)
        session_id = uuid.uuid4().hex
        new = _described(json.loads(request.body or b"{}"), bucket, name, b"", generation)
        self._sessions[session_id] = Session(new)
        host = request.header("Host")
        location = f"http://{host}{request.path}?uploadType=resumable&upload_id={session_id}"
        return CloudAnswer(200, b"", {"Location": location, "X-GUploader-UploadID": session_id})

    def _continue_upload(self, request: CloudRequest, session_id: str, behaviour: Behaviour) -> CloudAnswer:
        """Take a piece of a resumable upload; the last one says how long the whole is."""
        session = self._sessions.get(session_id)
        if session is None:
            raise Refused(404, "notFound")
        if request.method == "DELETE":
            self._sessions.pop(session_id, None)
            return CloudAnswer(499)
        asked = _RANGE.fullmatch(request.header("Content-Range") or f"bytes */{len(request.body)}")
        if asked is None:
            raise Refused(400, "invalid")
        content = session.new.content
        begin = int(asked[1] or len(content))
        if begin > len(content):
            raise Refused(400, "invalid", "a piece is missing")
        session.new = replace(session.new, content=content[:begin] + request.body)
        length = len(session.new.content)
        if asked[3] == "*" or int(asked[3]) > length:
            headers = {"Range": f"bytes=0-{length - 1}"} if length else {}
            return CloudAnswer(308, b"", headers)
        stored = put_as_asked(self._backend, session.new, behaviour)
        return json_answer(_document(session.new.bucket, stored))


def crc32c(content: bytes) -> str:
    """Return the checksum of a content in base64, as Google writes it."""
    return b64encode(google_crc32c.value(content).to_bytes(4, "big")).decode()


def _unquoted(match: re.Match[str]) -> list[str]:
    return [unquote(group or "") for group in match.groups()]


def _generation(request: CloudRequest, name: str) -> int | None:
    value = request.query.get(name)
    return int(value) if value else None


def _described(about: Mapping[str, Any], bucket: str, name: str, content: bytes, generation: int | None) -> NewObject:
    """Return the object that a document describes."""
    content_type = about.get("contentType", "")
    return NewObject(bucket, name or about["name"], content, about.get("metadata", {}), content_type, generation)


def _parts(request: CloudRequest) -> tuple[dict[str, Any], bytes]:
    """Return the document and the content of a multipart/related body."""
    boundary = re.search(r"boundary=['\"]?([^'\";]+)", request.header("Content-Type"))
    if boundary is None:
        raise Refused(400, "invalid")
    edge = f"--{boundary[1]}".encode()
    # The content may have line ends, and even the edge's characters, but not a line that begins with the edge.
    _, first, rest = request.body.split(edge, 2)
    content = rest.rpartition(b"\r\n" + edge)[0]
    document = first.partition(b"\r\n\r\n")[2]
    return json.loads(document or b"{}"), content.partition(b"\r\n\r\n")[2]


def _bucket_document(name: str) -> dict[str, Any]:
    return {
        "kind": "storage#bucket",
        "id": name,
        "name": name,
        "location": "US",
        "storageClass": "STANDARD",
        "metageneration": "1",
        "timeCreated": "2026-01-01T00:00:00Z",
        "updated": "2026-01-01T00:00:00Z",
    }


def _document(bucket: str, stored: CloudObject) -> dict[str, Any]:
    """Return an object as the JSON API describes it."""
    moment = f"{stored.modified:%Y-%m-%dT%H:%M:%S.%fZ}"
    return {
        "kind": "storage#object",
        "id": f"{bucket}/{stored.name}/{stored.generation}",
        "name": stored.name,
        "bucket": bucket,
        "generation": str(stored.generation),
        "metageneration": "1",
        "contentType": stored.content_type,
        "timeCreated": moment,
        "updated": moment,
        "storageClass": "STANDARD",
        "size": str(stored.size),
        "md5Hash": b64encode(stored.md5).decode(),
        "crc32c": crc32c(stored.content),
        "etag": b64encode(str(stored.generation).encode()).decode(),
        "metadata": dict(stored.metadata),
    }


def _media_headers(stored: CloudObject) -> dict[str, str]:
    return {
        "Content-Type": stored.content_type,
        "Accept-Ranges": "bytes",
        "X-Goog-Generation": str(stored.generation),
        "X-Goog-Hash": f"crc32c={crc32c(stored.content)},md5={b64encode(stored.md5).decode()}",
        "X-Goog-Stored-Content-Length": str(stored.size),
    }
