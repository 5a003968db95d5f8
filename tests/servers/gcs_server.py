"""A server that plays Google Cloud Storage: its XML API, which object_store speaks, and its JSON API.

    python -m tests.servers.gcs_server [--behind http://127.0.0.1:PORT]

It keeps objects in memory. With `--behind` a fake-gcs-server keeps them, which has no PUT of the XML API: this server
translates the XML API, and passes the JSON API on.
"""

import re
import uuid
from base64 import b64encode
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from typing import Protocol
from urllib.parse import quote, unquote
from xml.sax.saxutils import escape

from tests.servers.cloud_http import (
    Behaviour,
    CloudAnswer,
    CloudRequest,
    CloudServer,
    Refused,
    asked_range,
    http_date,
    json_answer,
    range_answer,
    read_options,
    serve,
    xml_answer,
)
from tests.servers.cloud_objects import Backend, CloudObject, ListQuestion, MemoryBackend, NewObject, put_as_asked
from tests.servers.cloud_tokens import GCS, is_live, is_self_signed
from tests.servers.fake_gcs import FakeGcs
from tests.servers.gcs_json import JsonApi, crc32c

_JSON_PATH = re.compile(r"/(storage|upload|download|resumable)/")
_METADATA = "x-goog-meta-"


class Answers(Protocol):
    """Answers requests of the JSON API."""

    def answer(self, request: CloudRequest, behaviour: Behaviour) -> CloudAnswer: ...


@dataclass
class Upload:
    """A multipart upload that has not ended. `new`: the object that it makes, without content."""

    new: NewObject
    parts: dict[int, bytes] = field(default_factory=dict)


class GcsApi:
    """Answers the XML API from a backend, and gives the JSON API on."""

    def __init__(self, backend: Backend, json_api: Answers) -> None:
        self._backend = backend
        self._json_api = json_api
        self._uploads: dict[str, Upload] = {}

    def answer(self, request: CloudRequest, behaviour: Behaviour) -> CloudAnswer:
        """Answer a request of either API. Raises Refused."""
        token = request.header("Authorization").partition(" ")[2]
        is_known = is_live(token, GCS) or (behaviour.public_key and is_self_signed(token, behaviour.public_key))
        if behaviour.demand_tokens and not is_known:
            raise Refused(401, "AuthenticationRequired", "The bearer token is missing, unknown or has ended.")
        if _JSON_PATH.match(request.path):
            return self._json_api.answer(request, behaviour)
        bucket, name = request.names
        if not name:
            return self._answer_bucket(request, bucket, behaviour)
        if "uploadId" in request.query or "uploads" in request.query:
            return self._answer_upload(request, behaviour)
        match request.method:
            case "PUT":
                return self._put(request, behaviour)
            case "DELETE":
                self._backend.delete(bucket, name)
                return CloudAnswer(204)
            case "GET":
                return self._read(request, bucket, name)
            case "HEAD":
                stored = self._backend.look(bucket, name)
                return CloudAnswer(200, b"", {**object_headers(stored), "Content-Length": str(stored.size)})
        raise Refused(405, "MethodNotAllowed")

    def refuse(self, request: CloudRequest, refused: Refused) -> CloudAnswer:
        """Word a refusal as the API of the request does."""
        if _JSON_PATH.match(request.path):
            error = {"code": refused.status, "message": refused.message, "errors": [{"reason": refused.code}]}
            return json_answer({"error": error}, refused.status)
        text = f"<Error><Code>{refused.code}</Code><Message>{escape(refused.message)}</Message></Error>"
        return xml_answer(text, refused.status)

    def _answer_bucket(self, request: CloudRequest, bucket: str, behaviour: Behaviour) -> CloudAnswer:
        if request.method == "PUT":
            self._backend.create_bucket(bucket)
            return CloudAnswer(200)
        if request.method != "GET":
            raise Refused(405, "MethodNotAllowed")
        if "uploads" in request.query:
            return self._list_uploads(bucket)
        query = request.query
        question = ListQuestion(
            prefix=query.get("prefix", ""),
            delimiter=query.get("delimiter", ""),
            after=query.get("start-after", ""),
            token=query.get("continuation-token", ""),
            size_max=min(int(query.get("max-keys") or 1_000), behaviour.page_max),
        )
        page = self._backend.list(bucket, question)
        encode: Callable[[str], str] = quote if query.get("encoding-type") == "url" else escape
        entries = [f"<CommonPrefixes><Prefix>{encode(name)}</Prefix></CommonPrefixes>" for name in page.folders]
        entries += [_list_entry(stored, encode) for stored in page.objects]
        if page.token:
            entries.append(f"<NextContinuationToken>{escape(page.token)}</NextContinuationToken>")
        truncated = str(bool(page.token)).lower()
        return xml_answer(
            f"<ListBucketResult><Name>{bucket}</Name><IsTruncated>{truncated}</IsTruncated>"
            f"{''.join(entries)}</ListBucketResult>"
        )

    def _put(self, request: CloudRequest, behaviour: Behaviour) -> CloudAnswer:
        """Put an object, or a copy of one."""
        new = _new_object(request)
        source = request.header("x-goog-copy-source")
        if source:
            bucket, _, name = source.lstrip("/").partition("/")
            original = self._backend.read(unquote(bucket), unquote(name))
            new = replace(new, content=original.content, metadata=original.metadata, content_type=original.content_type)
        stored = put_as_asked(self._backend, new, behaviour)
        headers = {"ETag": etag(stored), "x-goog-generation": str(stored.generation)}
        if source:
            text = f"<CopyObjectResult><ETag>{escape(etag(stored))}</ETag></CopyObjectResult>"
            return xml_answer(text, 200, headers)
        return CloudAnswer(200, b"", headers)

    def _read(self, request: CloudRequest, bucket: str, name: str) -> CloudAnswer:
        stored = self._backend.look(bucket, name)
        wanted = request.header("If-Match")
        if wanted and wanted != etag(stored):
            raise Refused(412, "PreconditionFailed")
        if request.header("If-None-Match") == etag(stored):
            return CloudAnswer(304, b"", {"ETag": etag(stored)})
        bounds = asked_range(request.header("Range"), stored.size)
        content = self._backend.content(bucket, stored, bounds)
        return range_answer(content, object_headers(stored), bounds, stored.size)

    def _answer_upload(self, request: CloudRequest, behaviour: Behaviour) -> CloudAnswer:
        """Begin a multipart upload, take a part, and end it: whole or not at all."""
        if request.method == "POST" and "uploads" in request.query:
            upload_id = uuid.uuid4().hex
            self._uploads[upload_id] = Upload(replace(_new_object(request), content=b"", generation=None))
            return xml_answer(
                f"<InitiateMultipartUploadResult><UploadId>{upload_id}</UploadId></InitiateMultipartUploadResult>"
            )
        upload_id = request.query.get("uploadId", "")
        upload = self._uploads.get(upload_id)
        if upload is None:
            raise Refused(404, "NoSuchUpload")
        match request.method:
            case "PUT":
                number = int(request.query["partNumber"])
                upload.parts[number] = request.body
                return CloudAnswer(200, b"", {"ETag": f'"{number}-{len(request.body)}"'})
            case "DELETE":
                self._uploads.pop(upload_id, None)
                return CloudAnswer(204)
            case "POST":
                answer = self._end_upload(request, upload, behaviour)
                self._uploads.pop(upload_id, None)
                return answer
        raise Refused(405, "MethodNotAllowed")

    def _end_upload(self, request: CloudRequest, upload: Upload, behaviour: Behaviour) -> CloudAnswer:
        numbers = [int(number) for number in re.findall(rb"<PartNumber>(\d+)</PartNumber>", request.body)]
        if not numbers or numbers != sorted(numbers) or not upload.parts.keys() >= set(numbers):
            raise Refused(400, "InvalidPart")
        content = b"".join(upload.parts[number] for number in numbers)
        new = replace(upload.new, content=content, generation=_condition(request))
        stored = put_as_asked(self._backend, new, behaviour)
        text = f"<ETag>{escape(etag(stored))}</ETag>"
        headers = {"x-goog-generation": str(stored.generation)}
        return xml_answer(f"<CompleteMultipartUploadResult>{text}</CompleteMultipartUploadResult>", 200, headers)

    def _list_uploads(self, bucket: str) -> CloudAnswer:
        entries = [
            f"<Upload><Key>{escape(upload.new.name)}</Key><UploadId>{upload_id}</UploadId></Upload>"
            for upload_id, upload in self._uploads.items()
            if upload.new.bucket == bucket
        ]
        return xml_answer(f"<ListMultipartUploadsResult>{''.join(entries)}</ListMultipartUploadsResult>")


def etag(stored: CloudObject) -> str:
    """Return the ETag of an object, which is of its content alone."""
    return f'"{stored.md5.hex()}"'


def object_headers(stored: CloudObject) -> dict[str, str]:
    """Return the headers of an answer that has an object."""
    headers = {
        "Content-Type": stored.content_type,
        "ETag": etag(stored),
        "Last-Modified": http_date(stored.modified),
        "Accept-Ranges": "bytes",
        "x-goog-generation": str(stored.generation),
        **{f"{_METADATA}{name}": value for name, value in stored.metadata.items()},
    }
    if stored.content:
        headers["x-goog-hash"] = f"crc32c={crc32c(stored.content)},md5={b64encode(stored.md5).decode()}"
    return headers


def _list_entry(stored: CloudObject, encode: Callable[[str], str]) -> str:
    """Return an object as a list has it. `encode`: of its name."""
    return (
        f"<Contents><Key>{encode(stored.name)}</Key><Generation>{stored.generation}</Generation>"
        f"<LastModified>{stored.modified:%Y-%m-%dT%H:%M:%S.%fZ}</LastModified>"
        f"<ETag>{escape(etag(stored))}</ETag><Size>{stored.size}</Size></Contents>"
    )


def _new_object(request: CloudRequest) -> NewObject:
    bucket, name = request.names
    metadata = request.metadata(_METADATA)
    return NewObject(bucket, name, request.body, metadata, request.header("Content-Type"), _condition(request))


def _condition(request: CloudRequest) -> int | None:
    generation = request.header("x-goog-if-generation-match")
    return int(generation) if generation else None


def main() -> None:
    """Run the server until the process is killed."""
    behind = read_options("Plays Google Cloud Storage.", "--behind").behind
    if behind:
        fake = FakeGcs(behind)
        api = GcsApi(fake, fake)
    else:
        memory = MemoryBackend()
        api = GcsApi(memory, JsonApi(memory))
    server = CloudServer(api.answer, api.refuse)
    if behind:
        fake.public_url = server.url
    serve(server)


if __name__ == "__main__":
    main()
