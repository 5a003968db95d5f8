"""Checks and reads the answers of schema registries, and hides logins in what is said of them. Pure."""

import json
import re
from typing import Any

AVRO = (None, "", "AVRO")  # types of a schema as an answer has them; Avro is left out
_USER = re.compile(r"(?<=://)\S*@")  # to the last @: one may stand in a password, as may a slash
SHOWN = 80  # characters of an answer that is none, in a message


def whole(text: object, kind: str | None = None) -> str:
    """Return a schema's text as a registry sent it. Raises ValueError for nothing, for a part, and for a proxy's page.

    `kind`: type of the schema, as the answer names it. What is no Avro is whole as it is: the parser refuses it.
    """
    if not isinstance(text, str) or not text.strip():
        raise ValueError("it sent no schema")
    if kind in AVRO:
        try:
            empty = not json.loads(text)
        except ValueError:
            raise ValueError(f"it sent no whole schema, but {text[:SHOWN]!r}") from None
        if empty:
            raise ValueError(f"it sent an empty schema, {text[:SHOWN]}")
    return text


def listed(answer: object, what: str) -> list[Any]:
    """Return an answer that is a list. Raises ValueError. `what`: that it lists."""
    if not isinstance(answer, list):
        raise ValueError(f"it sent no list of {what}, but {str(answer)[:SHOWN]!r}")  # noqa: TRY004 - of an answer
    return answer


def names_absence(content: bytes) -> bool:
    """Tell Apicurio's 404, such as ArtifactNotFoundException, from that of any path, NotFoundException."""
    try:
        found = json.loads(content)
    except ValueError:
        return False
    name = str(found.get("name")) if isinstance(found, dict) else ""
    return name.removesuffix("NotFoundException") not in ("", name)


def inlined(schema: object, parts: dict[str, object]) -> object:
    """Put each referenced schema where its name is first used; later uses stay names."""
    if isinstance(schema, str):
        return inlined(parts.pop(schema), parts) if schema in parts else schema
    if isinstance(schema, list):
        return [inlined(item, parts) for item in schema]
    if isinstance(schema, dict):
        return {k: inlined(v, parts) if k in ("type", "items", "values", "fields") else v for k, v in schema.items()}
    return schema


def without_user(text: str) -> str:
    """Remove user and password from every URL in a text."""
    return _USER.sub("***@", text)
