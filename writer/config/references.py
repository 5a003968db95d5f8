"""Replaces references in a configuration: `${env:NAME}` and `${file:/path}` stand for what is looked up.

So no secret stands in the file.
"""

import os
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from headrace.writer.core.errors import ConfigError, FileUnavailable, HeadraceError, file_error

_REFERENCE = re.compile(r"\$\{(env|file):([^}]+)\}")
# Returns the value of a reference's kind and name. Raises ConfigError, FileUnavailable.
LookUp = Callable[[str, str], str]


@dataclass
class References:
    """The references of a configuration: where each stands, what it stands for, and which stand for nothing."""

    look_up: LookUp
    # Reference → the keys of the configuration that want it.
    keys: dict[str, list[str]] = field(default_factory=dict)
    # Value → reference.
    _values: dict[str, str] = field(default_factory=dict)
    # Reference → why it has no value.
    _errors: dict[str, HeadraceError] = field(default_factory=dict)

    def replace_in(self, document: Any, read: str, *above: str) -> Any:
        """Return a document with the values in place of the references. `read`: what it is; `above`: keys around it.

        Raises ConfigError, or FileUnavailable, with a line for each reference that has no value and the keys that want
        it.
        """
        replaced = self._replace(document, above)
        if not self._errors:
            return replaced
        lines = [f"{read} cannot be used:"]
        for reference, error in self._errors.items():
            lines.append(f"  {', '.join(self.keys[reference])}: {error}")
        message = "\n".join(lines)
        if any(isinstance(error, FileUnavailable) for error in self._errors.values()):
            raise FileUnavailable(message)
        raise ConfigError(message)

    def hide_values(self, message: str) -> str:
        """Put references back in place of their values, which may be secrets."""
        for text in sorted(filter(None, self._values), key=len, reverse=True):
            for shown in (text, repr(text)[1:-1]):
                message = message.replace(shown, self._values[text])
        return message

    def _replace(self, value: Any, path: tuple[str, ...]) -> Any:
        if isinstance(value, dict):
            return {key: self._replace(item, (*path, str(key))) for key, item in value.items()}
        if isinstance(value, list):
            return [self._replace(item, (*path, str(index))) for index, item in enumerate(value)]
        if not isinstance(value, str):
            return value

        def replacement(match: re.Match[str]) -> str:
            reference = match[0]
            self.keys.setdefault(reference, []).append(".".join(path))
            try:
                text = self.look_up(match[1], match[2])
            except HeadraceError as error:
                self._errors[reference] = error
                return reference
            self._values[text] = reference
            return text

        return _REFERENCE.sub(replacement, value)


def has_reference(text: str) -> bool:
    """Return whether a text takes a part from elsewhere."""
    return _REFERENCE.search(text) is not None


def look_up(kind: str, name: str, environment: Mapping[str, str] = os.environ) -> str:
    """Return the value of a reference in the environment, or in a file. Raises ConfigError, FileUnavailable."""
    if kind == "env":
        if name not in environment:
            raise ConfigError(f"the environment variable {name} is not set. Set it.")
        text = environment[name]
        if not _is_unicode(text):
            raise ConfigError(f"the environment variable {name} is not UTF-8. Set it to text in UTF-8.")
        return text
    try:
        # An error of a decoder would have the text in it, which may be a secret.
        text = Path(name).read_text(encoding="utf-8", errors="surrogateescape")
    except (OSError, ValueError) as error:
        why: str | None = "its name is none"
        if isinstance(error, OSError):
            why = error.strerror
        message = f"the file {name} cannot be read: {why}. Create it, or correct the reference."
        raise file_error(message, error) from error
    if not _is_unicode(text):
        raise ConfigError(f"the file {name} cannot be read: its text is not UTF-8. Write it anew in UTF-8.")
    # Some editors begin a file with this mark.
    return text.removeprefix("\ufeff").strip()


def _is_unicode(text: str) -> bool:
    """Return whether a text has characters alone. Python keeps bytes that are no UTF-8 as halves of characters."""
    return not any("\ud800" <= character <= "\udfff" for character in text)
