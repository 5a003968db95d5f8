"""What others say of a login, for a message: one line, not long, and without what was sent to them.

Brokers, registries and AWS may repeat a password or a token in the reason of a refusal, whole or a part of it.
"""

import json
import re
from urllib.parse import quote, quote_plus

from headrace.writer.core.text import one_line

# Of longer words more is not looked at.
_LOOKED_AT = 4000
# So many characters of a secret in a row are a part of it, and no chance.
_PART = 12
# A shorter secret would be found in any word.
_SECRET_MIN = 4
_HIDDEN = "…"
# A word that is long may be a key or a token: AWS's are not known here.
_LONG_WORD = re.compile(r"[A-Za-z0-9._+=/-]{40,}")
_LONG_RUN = re.compile(r"[A-Za-z0-9_+=]{32,}")


def hide_secrets(message: str, *secrets: str) -> str:
    """Return words for a message, on one line and without secrets or parts of them."""
    text = message[:_LOOKED_AT]
    forms = {form for secret in secrets if len(secret) >= _SECRET_MIN for form in _forms(secret)}
    for form in sorted(forms, key=len, reverse=True):
        text = _hide_parts(text.replace(form, _HIDDEN), form)
    return one_line(text)


def hide_keys(message: str) -> str:
    """Return words for a message without long words that look like keys or tokens. Names of hosts and roles stay."""
    return one_line(_LONG_WORD.sub(_hide_key, message[:_LOOKED_AT]))


def _forms(secret: str) -> set[str]:
    """Return a secret as it is, and as URLs, forms and JSON have it."""
    forms = {secret, json.dumps(secret)[1:-1], json.dumps(secret, ensure_ascii=False)[1:-1]}
    # What is no UTF-8 has no such forms.
    encoded = secret.encode(errors="replace")
    return forms | {quote(encoded, safe=""), quote_plus(encoded)}


def _hide_parts(text: str, secret: str) -> str:
    """Hide what a text has in common with a secret: a server may cut what it repeats."""
    if len(secret) <= _PART:
        return text
    is_part = [False] * len(text)
    for begin in range(len(text) - _PART + 1):
        if text[begin : begin + _PART] in secret:
            is_part[begin : begin + _PART] = [True] * _PART
    shown = list[str]()
    for character, is_hidden in zip(text, is_part, strict=True):
        if not is_hidden:
            shown.append(character)
        elif not shown or shown[-1] != _HIDDEN:
            shown.append(_HIDDEN)
    return "".join(shown)


def _hide_key(match: re.Match[str]) -> str:
    """Return a word, or the sign that it is hidden: keys have digits, and capital letters or a long run."""
    word = match[0]
    has_digit = any(character.isdigit() for character in word)
    has_capital = any(character.isupper() for character in word)
    if has_digit and (has_capital or _LONG_RUN.search(word)):
        return _HIDDEN
    return word
