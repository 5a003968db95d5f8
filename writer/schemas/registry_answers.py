"""Checks and reads the answers of schema registries, and hides logins in what is said of them. Pure."""

import json
import re
from typing import Any

from writer.avro.schema_text import UnsupportedSchema, read_json

AVRO = (None, "", "AVRO")  # types of a schema as an answer has them; Avro is left out
_USER = re.compile(r"(?<=://)\S*@")  # to the last @: one may stand in a password, as may a slash
_NOT_FOUND = 404
SHOWN = 80  # characters of an answer that is none, in a message


def envelope_text(answer: object) -> str:
    """Return the text in a schema's envelope, whatever it says: the parser refuses what is no schema.

    Raises ValueError for an answer that is no envelope, or an empty one.
    """
    text = answer.get("schema") if isinstance(answer, dict) else None
    if not isinstance(text, str) or not text.strip():
        raise ValueError("it sent no schema")
    return text


def document_text(text: str, kind: str | None) -> str:
    """Return a text that came without an envelope. Raises ValueError for nothing, and for a part or a proxy's page.

    `kind`: type of the schema, as a header of the answer names it; None: it has no such header, so the text must show
    that it is a schema.
    """
    if not text.strip():
        raise ValueError("it sent no schema")
    if kind is None:
        try:
            is_empty = not read_json(text)
        except UnsupportedSchema:
            raise ValueError(f"it sent no whole schema, but {text[:SHOWN]!r}") from None
        if is_empty:
            raise ValueError(f"it sent an empty schema, {text[:SHOWN]}")
    return text


def listed(answer: object, what: str) -> list[Any]:
    """Return an answer that is a list. Raises ValueError. `what`: that it lists."""
    if not isinstance(answer, list):
        raise ValueError(f"it sent no list of {what}, but {str(answer)[:SHOWN]!r}")  # noqa: TRY004 - of an answer
    return answer


def names_absence(content: bytes) -> bool:
    """Tell Apicurio's 404, such as ArtifactNotFoundException, from that of any path, NotFoundException."""
    name = str(_members(content).get("name"))
    return name.removesuffix("NotFoundException") not in ("", name)


def has_absence_code(content: bytes) -> bool:
    """Tell the 404 of Confluent's API, such as 40401 (no subject) or 40403 (no schema), from that of any path."""
    code = _members(content).get("error_code")
    return isinstance(code, int) and is_absence_code(code)


def is_absence_code(code: int) -> bool:
    """Return whether an error code of Confluent's API says that there is no such thing."""
    return code // 100 == _NOT_FOUND


def _members(content: bytes) -> dict[str, Any]:
    try:
        answer = json.loads(content)
    except ValueError:
        return {}
    return answer if isinstance(answer, dict) else {}


def without_user(text: str) -> str:
    """Remove user and password from every URL in a text."""
    return _USER.sub("***@", text)
