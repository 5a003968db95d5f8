"""A server that plays the Blob API of Azure Storage, with one account, which is in the path.

    python -m tests.servers.azure_server --account headracetest --key BASE64

It keeps blobs in memory. Each request is signed by the key, has a shared access signature, or a token of
`cloud_tokens`.
"""

import math
import re
import threading
import time
import uuid
from base64 import b64decode, b64encode
from collections.abc import Mapping
from dataclasses import dataclass, replace
from email import message_from_bytes
from urllib.parse import parse_qsl, unquote, urlsplit
from xml.sax.saxutils import escape

from tests.servers.azure_keys import sas_problem, sign_text, text_to_sign
from tests.servers.cloud_http import (
    Behaviour,
    CloudAnswer,
    CloudRequest,
    CloudServer,
    Refused,
    http_date,
    read_options,
    serve,
    slice_answer,
    xml_answer,
)
from tests.servers.cloud_objects import CloudObject, ListQuestion, MemoryBackend, NewObject, put_as_asked
from tests.servers.cloud_tokens import AZURE, is_live

_METADATA = "x-ms-meta-"
_VERSION = "2023-11-03"
_IDENTIFIER = re.compile(r"[A-Za-z_]\w*", re.ASCII)
# How Azure words what the backend says.
_CODES = {
    "NoSuchBucket": "ContainerNotFound",
    "NoSuchKey": "BlobNotFound",
    "BucketAlreadyExists": "ContainerAlreadyExists",
    "PreconditionFailed": "ConditionNotMet",
}

# The reason phrases of answers in a batch, as Azure has them.
_REASONS = {
    "ContainerNotFound": "The specified container does not exist.",
    "BlobNotFound": "The specified blob does not exist.",
}


class Leases:
    """Leases of blobs, which Arrow takes before it deletes one. While one lasts, only who holds it may write."""

    def __init__(self) -> None:
        # Names of a blob → the lease's id, and when it ends, in seconds of the monotonic clock.
        self._leases: dict[tuple[str, str], tuple[str, float]] = {}
        self._lock = threading.Lock()

    def acquire(self, container: str, blob: str, lease_id: str, life_s: int) -> str:
        """Return the id of a new lease; -1 s is for ever. Raises Refused while another lasts."""
        with self._lock:
            current = self._current(container, blob)
            if current not in ("", lease_id):
                raise Refused(409, "LeaseAlreadyPresent")
            end_s = math.inf if life_s < 0 else time.monotonic() + life_s
            self._leases[container, blob] = (lease_id or str(uuid.uuid4()), end_s)
            return self._leases[container, blob][0]

    def check(self, request: CloudRequest, container: str, blob: str) -> None:
        """Refuse a request to write a blob whose lease it does not name."""
        current = self._current(container, blob)
        if current and request.header("x-ms-lease-id") != current:
            raise Refused(412, "LeaseIdMissing")

    def end(self, container: str, blob: str) -> None:
        """End the lease of a blob, if there is one."""
        self._leases.pop((container, blob), None)

    def _current(self, container: str, blob: str) -> str:
        lease_id, end_s = self._leases.get((container, blob), ("", 0.0))
        return lease_id if end_s > time.monotonic() else ""


@dataclass(frozen=True)
class PendingCopy:
    """A copy that was answered before it is complete. `end_s`: of the monotonic clock."""

    source: tuple[str, str]
    new: NewObject
    end_s: float


class BlobApi:
    """Answers the Blob API from memory."""

    def __init__(self, account: str, key: str) -> None:
        self._account = account
        self._key = key
        self._backend = MemoryBackend()
        # Of each blob, the blocks that no block list has named yet: base64 of their names → content.
        self._uncommitted: dict[tuple[str, str], dict[str, bytes]] = {}
        # Of each blob, the blocks that its last block list had.
        self._committed: dict[tuple[str, str], dict[str, bytes]] = {}
        # Of each blob that is a copy, what its answers say of it: Arrow asks until the copy is done.
        self._copies: dict[tuple[str, str], dict[str, str]] = {}
        # Copies that are not complete: names of the blob that is to be → the copy.
        self._pending: dict[tuple[str, str], PendingCopy] = {}
        self._leases = Leases()

    def answer(self, request: CloudRequest, behaviour: Behaviour) -> CloudAnswer:
        """Answer a request. Raises Refused."""
        self._check_proof(request, behaviour)
        self._end_copies(behaviour)
        container, blob = self._names(request.path)
        if request.query.get("comp") == "batch":
            return self._answer_batch(request, behaviour)
        if request.query.get("restype") == "container":
            return self._answer_container(request, container, behaviour)
        # Arrow asks so whether the account has a hierarchical namespace.
        if request.query.get("action") == "getAccessControl":
            raise Refused(400, "HierarchicalNamespaceNotEnabled")
        match request.method, request.query.get("comp", ""):
            case "PUT", "block":
                return self._put_block(request, container, blob)
            case "PUT", "blocklist":
                return self._put_block_list(request, container, blob, behaviour)
            case "PUT", "lease":
                return self._answer_lease(request, container, blob)
            case "GET", "blocklist":
                return self._list_blocks(container, blob)
            case "PUT", "metadata":
                stored = self._backend.read(container, blob)
                new = NewObject(container, blob, stored.content, _metadata(request), stored.content_type)
                return self._put_answer(put_as_asked(self._backend, new, behaviour), 200)
            case "PUT", "":
                return self._put(request, container, blob, behaviour)
            case "GET", "":
                return self._read(request, container, blob)
            case "HEAD", "" | "metadata":
                stored = self._backend.read(container, blob)
                copied = self._copies.get((container, blob), {})
                return CloudAnswer(200, b"", {**blob_headers(stored), **copied, "Content-Length": str(stored.size)})
            case "DELETE", "":
                self._leases.check(request, container, blob)
                self._backend.delete(container, blob)
                self._leases.end(container, blob)
                return CloudAnswer(202, b"", _common_headers())
        raise Refused(400, "UnsupportedHttpVerb")

    def refuse(self, request: CloudRequest, refused: Refused) -> CloudAnswer:
        """Word a refusal."""
        code = _CODES.get(refused.code, refused.code)
        headers = {**_common_headers(), "x-ms-error-code": code}
        # Azure's clients read whatever is said to be XML.
        if request.method == "HEAD":
            return CloudAnswer(refused.status, b"", headers)
        text = f"<Error><Code>{code}</Code><Message>{escape(refused.message)}</Message></Error>"
        return xml_answer(text, refused.status, headers)

    def _names(self, path: str) -> tuple[str, str]:
        """Return the container and the blob of a path. Raises Refused for another account."""
        account, _, rest = path.lstrip("/").partition("/")
        if account != self._account:
            raise Refused(404, "ResourceNotFound", "This account does not exist.")
        container, _, blob = rest.partition("/")
        return unquote(container), unquote(blob)

    def _check_proof(self, request: CloudRequest, behaviour: Behaviour) -> None:
        """Refuse a request that does not prove who asks."""
        scheme, _, proof = request.header("Authorization").partition(" ")
        if scheme == "Bearer":
            if not is_live(proof, AZURE):
                raise Refused(401, "InvalidAuthenticationInfo", "Lifetime validation failed. The token is expired.")
            return
        if behaviour.demand_tokens:
            raise Refused(401, "NoAuthenticationInformation", "A bearer token is demanded.")
        if "sig" in request.query:
            problem = sas_problem(request.query, self._account, self._key, *self._names(request.path))
        elif scheme == "SharedKey":
            text = text_to_sign(request.method, self._account, request.path, request.query, request.headers)
            is_signed = proof == f"{self._account}:{sign_text(self._key, text)}"
            problem = "" if is_signed else "The MAC signature found in the HTTP request is not the computed one."
        else:
            raise Refused(401, "NoAuthenticationInformation", "No credentials were sent.")
        if problem:
            message = f"Server failed to authenticate the request. {problem}"
            raise Refused(403, "AuthenticationFailed", message)

    def _answer_container(self, request: CloudRequest, container: str, behaviour: Behaviour) -> CloudAnswer:
        if request.method == "PUT":
            self._backend.create_bucket(container)
            return CloudAnswer(201, b"", _common_headers())
        self._backend.objects(container)
        if request.method == "DELETE":
            self._backend.objects(container).clear()
            self._backend.remove_bucket(container)
            return CloudAnswer(202, b"", _common_headers())
        if request.query.get("comp") == "list":
            return self._list(request, container, behaviour)
        properties = {
            "ETag": '"0x8DE0000000000"',
            "Last-Modified": "Thu, 01 Jan 2026 00:00:00 GMT",
            "x-ms-lease-status": "unlocked",
            "x-ms-lease-state": "available",
            "x-ms-has-immutability-policy": "false",
            "x-ms-has-legal-hold": "false",
        }
        return CloudAnswer(200, b"", {**_common_headers(), **properties})

    def _list(self, request: CloudRequest, container: str, behaviour: Behaviour) -> CloudAnswer:
        query = request.query
        question = ListQuestion(
            prefix=query.get("prefix", ""),
            delimiter=query.get("delimiter", ""),
            start=query.get("startFrom", ""),
            token=_name_of(query.get("marker", "")),
            size_max=min(int(query.get("maxresults") or 5_000), behaviour.page_max),
        )
        page = self._backend.list(container, question)
        with_metadata = "metadata" in query.get("include", "")
        entries = [_list_entry(stored, with_metadata=with_metadata) for stored in page.objects]
        entries += [f"<BlobPrefix><Name>{escape(name)}</Name></BlobPrefix>" for name in page.folders]
        asked = "".join(
            f"<{tag}>{escape(query[name])}</{tag}>"
            for name, tag in (
                ("prefix", "Prefix"), ("marker", "Marker"), ("maxresults", "MaxResults"), ("delimiter", "Delimiter"),
            )
            if query.get(name)
        )  # fmt: skip
        return xml_answer(
            f'<EnumerationResults ServiceEndpoint="http://{request.header("Host")}/{self._account}/" '
            f'ContainerName="{container}">{asked}<Blobs>{"".join(entries)}</Blobs>'
            f"<NextMarker>{_marker_of(page.token)}</NextMarker></EnumerationResults>",
            200,
            _common_headers(),
        )

    def _put(self, request: CloudRequest, container: str, blob: str, behaviour: Behaviour) -> CloudAnswer:
        """Put a blob, or a copy of one."""
        new = _new_blob(request, container, blob)
        source = request.header("x-ms-copy-source")
        if (container, blob) in self._pending:
            raise Refused(409, "PendingCopyOperation", "There is currently a pending copy operation.")
        if source:
            original = self._copied(source)
            metadata = new.metadata or original.metadata
            new = replace(new, content=original.content, metadata=metadata, content_type=original.content_type)
        elif request.header("x-ms-blob-type") != "BlockBlob":
            raise Refused(400, "InvalidHeaderValue", "Only block blobs are played.")
        self._leases.check(request, container, blob)
        is_pending = bool(source and behaviour.copy_ms)
        if is_pending:
            end_s = time.monotonic() + behaviour.copy_ms / 1_000
            self._pending[container, blob] = PendingCopy(self._names(urlsplit(source).path), new, end_s)
            new = replace(new, content=b"")
        stored = self._store(new, behaviour)
        self._committed.pop((container, blob), None)
        self._copies.pop((container, blob), None)
        if source:
            copied = {"x-ms-copy-id": str(uuid.uuid4()), "x-ms-copy-status": "success"}
            if is_pending:
                copied["x-ms-copy-status"] = "pending"
                self._copies[container, blob] = {**copied, "x-ms-copy-source": source.partition("?")[0]}
                return self._put_answer(stored, 202, copied)
            self._copies[container, blob] = {
                **copied,
                "x-ms-copy-source": source.partition("?")[0],
                "x-ms-copy-progress": f"{stored.size}/{stored.size}",
                "x-ms-copy-completion-time": http_date(stored.modified),
            }
            return self._put_answer(stored, 202, copied)
        return self._put_answer(stored, 201)

    def _end_copies(self, behaviour: Behaviour) -> None:
        """Complete the copies whose time has come; all, where copies are no longer late.

        One whose source is gone fails, and its blob stays empty.
        """
        for names, copy in list(self._pending.items()):
            is_late = behaviour.copy_ms > 0 and copy.end_s > time.monotonic()
            if is_late or self._pending.pop(names, None) is None:
                continue
            status = "success" if copy.source[1] in self._backend.objects(copy.source[0]) else "failed"
            if status == "success":
                self._backend.put(copy.new)
            self._copies[names] = {**self._copies.get(names, {}), "x-ms-copy-status": status}

    def _copied(self, source: str) -> CloudObject:
        """Return the blob at a URL. One with a shared access signature is checked as a request."""
        url = urlsplit(source)
        query = dict(parse_qsl(url.query, keep_blank_values=True))
        names = self._names(url.path)
        if "sig" in query and (problem := sas_problem(query, self._account, self._key, *names)):
            raise Refused(403, "CannotVerifyCopySource", problem)
        return self._backend.read(*names)

    def _store(self, new: NewObject, behaviour: Behaviour) -> CloudObject:
        """Put a blob. Blocks of it that no list has named are gone then."""
        try:
            stored = put_as_asked(self._backend, new, behaviour)
        except Refused as refused:
            if refused.status == 412 and new.generation == 0:
                raise Refused(409, "BlobAlreadyExists", "The specified blob already exists.") from refused
            raise
        self._uncommitted.pop((new.bucket, new.name), None)
        return stored

    def _put_block(self, request: CloudRequest, container: str, blob: str) -> CloudAnswer:
        self._backend.objects(container)
        self._uncommitted.setdefault((container, blob), {})[request.query["blockid"]] = request.body
        return CloudAnswer(201, b"", {**_common_headers(), "x-ms-request-server-encrypted": "true"})

    def _put_block_list(self, request: CloudRequest, container: str, blob: str, behaviour: Behaviour) -> CloudAnswer:
        """Put the blocks that the request names, in their order, as one blob."""
        self._leases.check(request, container, blob)
        uncommitted = self._uncommitted.get((container, blob), {})
        committed = self._committed.get((container, blob), {})
        sources = {
            "Latest": {**committed, **uncommitted},
            "Uncommitted": uncommitted,
            "Committed": committed,
        }
        named: dict[str, bytes] = {}
        contents: list[bytes] = []
        for tag, name in re.findall(r"<(Latest|Uncommitted|Committed)>([^<]*)<", request.body.decode()):
            if name not in sources[tag]:
                raise Refused(400, "InvalidBlockList", "The specified block list is invalid.")
            named[name] = sources[tag][name]
            contents.append(named[name])
        stored = self._store(replace(_new_blob(request, container, blob), content=b"".join(contents)), behaviour)
        self._committed[container, blob] = named
        return self._put_answer(stored, 201)

    def _answer_lease(self, request: CloudRequest, container: str, blob: str) -> CloudAnswer:
        stored = self._backend.read(container, blob)
        match request.header("x-ms-lease-action"):
            case "acquire":
                life_s = int(request.header("x-ms-lease-duration") or -1)
                lease_id = request.header("x-ms-proposed-lease-id")
                lease_id = self._leases.acquire(container, blob, lease_id, life_s)
                return self._put_answer(stored, 201, {"x-ms-lease-id": lease_id})
            case "release":
                self._leases.check(request, container, blob)
                self._leases.end(container, blob)
                return self._put_answer(stored, 200)
        raise Refused(400, "InvalidHeaderValue", "Of leases only acquire and release are played.")

    def _list_blocks(self, container: str, blob: str) -> CloudAnswer:
        stored = self._backend.read(container, blob)
        blocks = self._committed.get((container, blob), {})
        entries = "".join(
            f"<Block><Name>{name}</Name><Size>{len(content)}</Size></Block>" for name, content in blocks.items()
        )
        headers = {**_common_headers(), "ETag": etag(stored), "Last-Modified": http_date(stored.modified)}
        headers["x-ms-blob-content-length"] = str(stored.size)
        return xml_answer(
            f"<BlockList><CommittedBlocks>{entries}</CommittedBlocks><UncommittedBlocks /></BlockList>", 200, headers
        )

    def _read(self, request: CloudRequest, container: str, blob: str) -> CloudAnswer:
        stored = self._backend.read(container, blob)
        wanted = request.header("If-Match")
        if wanted and wanted != etag(stored):
            raise Refused(412, "ConditionNotMet")
        if request.header("If-None-Match") == etag(stored):
            return CloudAnswer(304, b"", {**_common_headers(), "ETag": etag(stored)})
        asked = request.header("x-ms-range") or request.header("Range")
        if asked.startswith("bytes=-"):
            raise Refused(400, "InvalidHeaderValue", "Suffix ranges are not supported.")
        return slice_answer(stored.content, blob_headers(stored), asked)

    def _put_answer(self, stored: CloudObject, status: int, others: Mapping[str, str] | None = None) -> CloudAnswer:
        headers = {
            **_common_headers(),
            "ETag": etag(stored),
            "Last-Modified": http_date(stored.modified),
            "x-ms-request-server-encrypted": "true",
            **(others or {}),
        }
        return CloudAnswer(status, b"", headers)

    def _answer_batch(self, request: CloudRequest, behaviour: Behaviour) -> CloudAnswer:
        """Delete the blobs that a batch names; each of its requests is answered by itself."""
        document = message_from_bytes(
            f"Content-Type: {request.header('Content-Type')}\r\n\r\n".encode("latin-1") + request.body
        )
        boundary = f"batchresponse_{uuid.uuid4()}"
        answers: list[str] = []
        for part in document.get_payload():
            payload = part.get_payload(decode=True)
            line, _, rest = payload.lstrip().partition(b"\r\n")
            method, target, _ = line.decode().split(" ", 2)
            url = urlsplit(target)
            inner = CloudRequest(
                method, url.path, dict(parse_qsl(url.query, keep_blank_values=True)), message_from_bytes(rest), b"",
            )  # fmt: skip
            try:
                answer = self.answer(inner, behaviour)
            except Refused as refused:
                answer = self.refuse(inner, refused)
            headers = "".join(f"{name}: {value}\r\n" for name, value in answer.headers.items())
            reason = _REASONS.get(answer.headers.get("x-ms-error-code", ""), "Answered")
            answers.append(
                f"--{boundary}\r\nContent-Type: application/http\r\nContent-ID: {part['Content-ID']}\r\n\r\n"
                f"HTTP/1.1 {answer.status} {reason}\r\n{headers}\r\n{answer.body.decode()}\r\n"
            )
        body = f"{''.join(answers)}--{boundary}--\r\n".encode()
        return CloudAnswer(202, body, {**_common_headers(), "Content-Type": f"multipart/mixed; boundary={boundary}"})


def etag(stored: CloudObject) -> str:
    """Return the ETag of a blob: another one at each put."""
    return f'"0x8D{stored.generation:X}"'


def blob_headers(stored: CloudObject) -> dict[str, str]:
    """Return the headers of an answer that has a blob."""
    modified = http_date(stored.modified)
    return {
        **_common_headers(),
        "Content-Type": stored.content_type,
        "ETag": etag(stored),
        "Last-Modified": modified,
        "Accept-Ranges": "bytes",
        "x-ms-creation-time": modified,
        "x-ms-blob-type": "BlockBlob",
        "x-ms-lease-status": "unlocked",
        "x-ms-lease-state": "available",
        "x-ms-server-encrypted": "true",
        "x-ms-access-tier": "Hot",
        "x-ms-access-tier-inferred": "true",
        **{f"{_METADATA}{name}": value for name, value in stored.metadata.items()},
    }


def _common_headers() -> dict[str, str]:
    return {"x-ms-request-id": str(uuid.uuid4()), "x-ms-version": _VERSION}


def _new_blob(request: CloudRequest, container: str, blob: str) -> NewObject:
    content_type = request.header("x-ms-blob-content-type") or request.header("Content-Type")
    return NewObject(container, blob, request.body, _metadata(request), content_type, _condition(request))


def _metadata(request: CloudRequest) -> dict[str, str]:
    """Return the metadata of a request. Raises Refused for a name that is no identifier of C#."""
    metadata = request.metadata(_METADATA)
    if not all(_IDENTIFIER.fullmatch(name) for name in metadata):
        raise Refused(400, "InvalidMetadata", "The metadata specified is invalid. It has characters not permitted.")
    return metadata


def _condition(request: CloudRequest) -> int | None:
    """Return the generation that a put may replace."""
    if request.header("If-None-Match") == "*":
        return 0
    wanted = re.fullmatch(r'"0x8D([0-9A-F]+)"', request.header("If-Match"))
    # No blob has this one.
    return int(wanted[1], 16) if wanted else (-1 if request.header("If-Match") else None)


def _list_entry(stored: CloudObject, *, with_metadata: bool) -> str:
    modified = http_date(stored.modified)
    metadata = "".join(f"<{name}>{escape(value)}</{name}>" for name, value in stored.metadata.items())
    return (
        f"<Blob><Name>{escape(stored.name)}</Name><Properties><Creation-Time>{modified}</Creation-Time>"
        f"<Last-Modified>{modified}</Last-Modified><Etag>{etag(stored).strip(chr(34))}</Etag>"
        f"<Content-Length>{stored.size}</Content-Length><Content-Type>{escape(stored.content_type)}</Content-Type>"
        "<Content-Encoding /><Content-Language /><Content-MD5 /><Cache-Control /><Content-Disposition />"
        "<BlobType>BlockBlob</BlobType><AccessTier>Hot</AccessTier><AccessTierInferred>true</AccessTierInferred>"
        "<LeaseStatus>unlocked</LeaseStatus><LeaseState>available</LeaseState>"
        "<ServerEncrypted>true</ServerEncrypted></Properties>"
        f"{f'<Metadata>{metadata}</Metadata>' if with_metadata else ''}</Blob>"
    )


def _marker_of(name: str) -> str:
    """Return a marker, which nobody should read."""
    return b64encode(name.encode()).decode()


def _name_of(marker: str) -> str:
    return b64decode(marker).decode()


def main() -> None:
    """Run the server until the process is killed."""
    options = read_options("Plays the Blob API of Azure Storage.", "--account", "--key")
    api = BlobApi(options.account, options.key)
    serve(CloudServer(api.answer, api.refuse))


if __name__ == "__main__":
    main()
