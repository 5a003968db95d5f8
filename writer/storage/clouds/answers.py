"""Reads what obstore raises. Its exceptions have no status and no code: both stand in their texts alone.

A text is a line, the body of the answer, and, behind an empty line, the error as Rust prints it:

    Object at location a not found: Error performing GET http://host/bucket/a in 1ms - Server returned non-2xx status
    code: 404 Not Found: <Error><Code>NoSuchKey</Code><Message>…</Message></Error>

    Debug source: …

`tests/unit/test_obstore_answers.py` holds these expressions to the version that is installed.
"""

import re
from dataclasses import dataclass

from headrace.writer.core.errors import LibraryPanicked
from headrace.writer.storage.bucket_store import one_line
from headrace.writer.storage.requests.failures import FailureKind, RequestFailed

_DEBUG = "\n\nDebug source:"
_STATUS = re.compile(r" - Server returned (?:non-2xx|error) status code: (\d{3})(.*)", re.DOTALL)
# Azure deletes in bulk, even one object.
_BULK_STATUS = re.compile(r"Bulk delete request failed for key .*: ([^:]*) \(code: (\d{3})\)$", re.DOTALL)
# The only word of a deletion in bulk on what is missing.
_NO_CONTAINER = "The specified container does not exist"
_CODE = re.compile(r"<Code>([^<]*)</Code>")
_MESSAGE = re.compile(r"<Message>([^<]*)</Message>")
# Google says here which permission is missing; Azure's holds what was signed.
_DETAILS = re.compile(r"<Details>([^<]*)</Details>")
# Azure puts an id and a time behind its message, so that no two are the same.
_REQUEST_ID = re.compile(r"RequestId:.*", re.DOTALL)
_BROKEN = re.compile(r"HttpError \{\s+kind: (\w+)")
_REASON = re.compile(r'\bOs \{.*?message: "([^"]*)"|"(dns error)"|(invalid peer certificate)', re.DOTALL)
# What was done where, which an operation says itself.
_PREFIX = re.compile(r"^Generic \w+ error: |Error performing .*? in [\d.]+\S+ - ", re.DOTALL)
# How often obstore sent a request again, and the name in it under which a list goes on: of Google, and of Azure.
_RETRIES = re.compile(r", after (\d+) retr(?:y|ies), max_retries")
_LATER_PAGE = re.compile(r"Error performing GET \S+[?&](?:continuation-token|marker)=")
_REDIRECT = "redirect"
_LOGIN = re.compile(r"token request|token response|federated token|Azure CLI", re.IGNORECASE)
_BAD_NAME = "Could not parse path"
_FEDERATED = "unknown variant `external_account`"
_BROKEN_TEXTS = {"Connect": "no connection", "Timeout": "no answer in time", "Interrupted": "the connection broke"}
_EXISTS = 412
_CONFLICT = 409
_UNKNOWN_HEADER = 501
_MISSING = 404
_RETRY_STATUSES = {408, _CONFLICT, 425, 429, 500, 502, 503, 504}
# Of Azure: something is there already.
_EXISTS_CODES = {"BlobAlreadyExists"}
_NO_BUCKET_CODES = {"NoSuchBucket", "ContainerNotFound", "ContainerBeingDeleted", "ResourceNotFound"}
# Of Azure, with 409: trying again changes nothing.
_LASTING_CODES = {
    "BlobArchived",
    "BlobImmutableDueToPolicy",
    "ContainerDisabled",
    "InvalidBlobType",
    "OperationNotSupportedOnDirectory",
    "ResourceTypeMismatch",
}
_FINAL_CODES = _EXISTS_CODES | _NO_BUCKET_CODES | _LASTING_CODES


@dataclass(frozen=True)
class Cloud:
    """What differs between the clouds that obstore reaches.

    `scheme`: of locations, for messages. `metadata`: the name under which an object's metadata hold
    the token of its PUT; Azure takes identifiers only. `bucket`: what it is called there. `grant`, `reach`: what to do
    when a request is refused, or has no answer. `page_names_max`: so many names are on a page of a list at most.
    """

    scheme: str
    metadata: str
    bucket: str
    grant: str
    reach: str
    page_names_max: int
    has_details: bool = False


GOOGLE = Cloud(
    scheme="gs",
    metadata="headrace-put",
    bucket="bucket",
    grant="Grant the service account roles/storage.objectUser on the bucket, or give another: the environment's "
    "(GOOGLE_APPLICATION_CREDENTIALS), gcs.service_account_file, or the one of the machine or pod.",
    reach="Look at the network, and at gcs.endpoint.",
    page_names_max=1_000,
    has_details=True,
)
AZURE = Cloud(
    scheme="az",
    metadata="headrace_put",
    bucket="container",
    grant="Grant the identity the role Storage Blob Data Contributor on the container, or give another: the "
    "environment's (AZURE_STORAGE_ACCOUNT_KEY, AZURE_STORAGE_SAS_TOKEN, AZURE_CLIENT_ID and its like), a workload's or "
    "a managed one.",
    reach="Look at the network, and at azure.account and azure.endpoint.",
    page_names_max=5_000,
)


@dataclass(frozen=True)
class _Answer:
    """What a text of obstore says. `status`: 0: none was received. `broken`: how the connection failed."""

    status: int
    code: str
    text: str
    broken: str
    login: bool


def request_failure(error: Exception, cloud: Cloud) -> RequestFailed:
    """Return what an exception of obstore says, without what a request carries."""
    if isinstance(error, LibraryPanicked):
        sentence, _, fix = str(error).partition(". ")
        return RequestFailed(sentence, fix, may_have_worked=True)
    text = str(error)
    answer = _read(text, cloud)
    if answer.login:
        return RequestFailed(
            f"credentials: {answer.text}",
            cloud.grant,
            may_pass=answer.status in _RETRY_STATUSES or bool(answer.broken),
        )
    return RequestFailed(
        answer.text,
        _fix(answer, cloud),
        kind=_kind(answer),
        status=answer.status,
        may_pass=_may_pass(answer),
        may_have_worked=answer.broken != "Connect" and answer.status != _CONFLICT,
        tries=_tries(text),
        is_later_page=bool(_LATER_PAGE.search(text)),
    )


def _tries(text: str) -> int:
    match = _RETRIES.search(text)
    return 1 + int(match.group(1)) if match else 1


def _read(text: str, cloud: Cloud) -> _Answer:
    line, _, debug = text.partition(_DEBUG)
    is_login = bool(_LOGIN.search(line))
    if match := _STATUS.search(line):
        status = int(match.group(1))
        code, shown = _read_body(status, match.group(2), cloud)
        return _Answer(status, code, shown, "", is_login)
    if match := _BULK_STATUS.search(line):
        code = "ContainerNotFound" if match.group(1).startswith(_NO_CONTAINER) else ""
        return _Answer(int(match.group(2)), code, f"{match.group(2)} ({one_line(match.group(1))})", "", is_login)
    if match := _BROKEN.search(debug):
        broken = match.group(1)
        shown = _BROKEN_TEXTS.get(broken, "the request failed")
        if reason := _REASON.search(debug):
            shown += f" ({next(filter(None, reason.groups()))})"
        return _Answer(0, "", shown, broken, is_login)
    return _Answer(0, "", one_line(_PREFIX.sub("", line)), "", is_login)


def _read_body(status: int, body: str, cloud: Cloud) -> tuple[str, str]:
    """Return the code of an answer, and the answer for a message."""
    code_match = _CODE.search(body)
    code = code_match.group(1) if code_match else ""
    shown = f"{status} {code}".rstrip()
    message = " ".join(_REQUEST_ID.sub("", text) for text in _MESSAGE.findall(body))
    if cloud.has_details:
        message += " " + " ".join(_DETAILS.findall(body))
    message = one_line(message)
    if message:
        shown += f" ({message})"
    return code, shown


def _kind(answer: _Answer) -> FailureKind:
    if answer.status == _EXISTS or answer.code in _EXISTS_CODES:
        return FailureKind.OBJECT_EXISTS
    if answer.status == _UNKNOWN_HEADER:
        return FailureKind.NO_CONDITION
    if answer.code in _NO_BUCKET_CODES:
        return FailureKind.NO_BUCKET
    if answer.status == _MISSING:
        return FailureKind.NO_OBJECT
    return FailureKind.OTHER


def _may_pass(answer: _Answer) -> bool:
    if answer.broken:
        return "certificate" not in answer.text
    return answer.status in _RETRY_STATUSES and answer.code not in _FINAL_CODES


def _fix(answer: _Answer, cloud: Cloud) -> str:
    if _FEDERATED in answer.text:
        return (
            "Google's federation of identities (external_account) is not supported: give the key of a service account, "
            "or the service account of the machine or pod."
        )
    if answer.text.startswith(_BAD_NAME):
        return "Give it another name."
    if answer.code in _LASTING_CODES:
        return "Look at what is there under this name."
    is_unsent = not answer.status and not answer.broken and _REDIRECT not in answer.text
    if is_unsent or answer.status in (401, 403):
        return cloud.grant
    return cloud.reach
