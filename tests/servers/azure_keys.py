"""Azure's proofs of who asks: signatures by an account's key, and shared access signatures."""

import hashlib
import hmac
from base64 import b64decode, b64encode
from collections.abc import Mapping
from datetime import UTC, datetime, timedelta
from typing import Protocol
from urllib.parse import unquote, urlencode

# Up to this version a signature has one line less.
_SCOPES_SINCE = "2020-12-06"
SAS_VERSION = "2022-11-02"
_SIGNED_HEADERS = (
    "Content-Encoding", "Content-Language", "Content-Length", "Content-MD5", "Content-Type", "Date",
    "If-Modified-Since", "If-Match", "If-None-Match", "If-Unmodified-Since", "Range",
)  # fmt: skip


class Headers(Protocol):
    """Headers of a request; their names in any case."""

    def get(self, name: str, default: str, /) -> str | None: ...

    def items(self) -> list[tuple[str, str]]: ...


def sign_text(key: str, text: str) -> str:
    """Return the signature of a text by an account's key, both in base64."""
    return b64encode(hmac.new(b64decode(key), text.encode(), hashlib.sha256).digest()).decode()


def text_to_sign(method: str, account: str, path: str, query: Mapping[str, str], headers: Headers) -> str:
    """Return what a signature by the account's key is of. `path`: as it is sent, with the account where it has it."""
    values = {name: headers.get(name, "") or "" for name in _SIGNED_HEADERS}
    if values["Content-Length"] == "0":
        values["Content-Length"] = ""
    own = sorted((name.lower(), value.strip()) for name, value in headers.items() if name.lower().startswith("x-ms-"))
    if any(name == "x-ms-date" for name, _ in own):
        values["Date"] = ""
    lines = [method, *values.values()]
    lines += [f"{name}:{value}" for name, value in own]
    lines.append(f"/{account}{path}")
    lines += [f"{name.lower()}:{query[name]}" for name in sorted(query, key=str.lower)]
    return "\n".join(lines)


def container_sas(account: str, key: str, container: str, life: timedelta, permissions: str) -> str:
    """Return a shared access signature for a container, as it stands in a query."""
    now = datetime.now(UTC)
    query = {
        "sp": permissions,
        # Clocks differ.
        "st": _sas_time(now - timedelta(minutes=15)),
        "se": _sas_time(now + life),
        "spr": "https,http",
        "sv": SAS_VERSION,
        "sr": "c",
    }
    query["sig"] = sign_text(key, _service_text(query, f"/blob/{account}/{container}"))
    return urlencode(query)


def sas_problem(query: Mapping[str, str], account: str, key: str, container: str, blob: str) -> str:
    """Return what is wrong with the shared access signature of a query; an empty text if nothing is.

    Not checked: what its permissions allow, and from which addresses.
    """
    if "ss" in query:
        text = _account_text(query, account)
    elif query.get("sr") == "c":
        text = _service_text(query, f"/blob/{account}/{container}")
    else:
        text = _service_text(query, f"/blob/{account}/{container}/{blob}")
    if not hmac.compare_digest(sign_text(key, text), query["sig"]):
        return "Signature did not match."
    if datetime.fromisoformat(query.get("se", "1970-01-01T00:00:00Z")) <= datetime.now(UTC):
        return "Signature not valid in the specified time frame."
    return ""


def _sas_time(moment: datetime) -> str:
    return f"{moment:%Y-%m-%dT%H:%M:%SZ}"


def _service_text(query: Mapping[str, str], resource: str) -> str:
    fields = [query.get(name, "") for name in ("sp", "st", "se")]
    fields.append(unquote(resource))
    fields += [query.get(name, "") for name in ("si", "sip", "spr", "sv", "sr", "snapshot")]
    if query.get("sv", "") >= _SCOPES_SINCE:
        fields.append(query.get("ses", ""))
    fields += [query.get(name, "") for name in ("rscc", "rscd", "rsce", "rscl", "rsct")]
    return "\n".join(fields)


def _account_text(query: Mapping[str, str], account: str) -> str:
    fields = [account, *(query.get(name, "") for name in ("sp", "ss", "srt", "st", "se", "sip", "spr", "sv"))]
    if query.get("sv", "") >= _SCOPES_SINCE:
        fields.append(query.get("ses", ""))
    return "\n".join([*fields, ""])
