"""What becomes of protected values, and by which words of a schema, or paths of the configuration."""

import json
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from functools import cached_property
from hashlib import sha256
from typing import Any, Literal

Kind = Literal["drop", "encrypt", "hash", "mask", "clear"]
# The strictest first.
KINDS: tuple[Kind, ...] = ("drop", "encrypt", "hash", "mask", "clear")
# Of a text that holds several values, the first tells least: `****` alone nothing, a ciphertext the length, a hash
# which texts are equal.
_KINDS_OF_TEXT: tuple[Kind, ...] = ("drop", "mask", "encrypt", "hash", "clear")
# Characters of the longest text.
_KEEP_MAX = 2**31 - 1
# Attribute with a list of tags, of a field or a record.
CONFLUENT_TAGS = "confluent:tags"


class PrivacyError(ValueError):
    """A schema whose fields cannot be protected as the policies say. Its message names the field and the fix."""


class UnknownTag(PrivacyError):
    """A tag for which there is no policy."""


class Unprotects(PrivacyError):
    """A path that would be in the clear, and that the table's log has as protected."""


class TooManyPaths(PrivacyError):
    """A schema with more paths to protect than a table's log may have, or with more names of paths than fit a start."""


class ProtectedUse(PrivacyError):
    """A column that is protected, and that a table needs as it was: its event time, or what it is put in order by."""


@dataclass(frozen=True)
class Action:
    """What becomes of a value."""

    kind: Kind
    # Of a mask: how many characters at the end stay.
    keep: int = 0

    @classmethod
    def of(cls, setting: Any) -> "Action":
        """Read it as a configuration and a schema's attribute have it: `hash`, `{mask: 4}`. Raises ValueError."""
        if isinstance(setting, Mapping) and list(setting) == ["mask"]:
            keep = setting["mask"]
            if type(keep) is int and 0 <= keep <= _KEEP_MAX:
                return cls("mask", keep)
        elif setting in KINDS and setting != "mask":
            return cls(setting)
        raise ValueError(f"{setting!r} is no policy; write drop, encrypt, hash, clear, or {{mask: 4}}")

    @property
    def setting(self) -> Any:
        """As a configuration has it."""
        if self.kind == "mask":
            return {"mask": self.keep}
        return self.kind

    @property
    def rank(self) -> tuple[int, int]:
        """Where it stands among others: the strictest is the least."""
        return KINDS.index(self.kind), self.keep

    def __str__(self) -> str:
        if self.kind == "mask":
            return f"mask: {self.keep}"
        return self.kind


CLEAR = Action("clear")


def strictest(actions: Iterable[Action]) -> Action:
    """Return the one that leaves least of a value; `clear` where there is none."""
    return min(actions, key=lambda action: action.rank, default=CLEAR)


def policy_of_text(actions: Iterable[Action]) -> Action:
    """Return the policy of one text that may hold values of several policies; `clear` where there is none.

    It is the one that tells least to those without keys, and a mask keeps no character: the end of the text may be a
    whole value.
    """
    action = min(actions, key=lambda action: _KINDS_OF_TEXT.index(action.kind), default=CLEAR)
    if action.kind == "mask":
        return Action("mask")
    return action


@dataclass(frozen=True)
class Policies:
    """The policies of one pipeline."""

    tags: tuple[tuple[str, Action], ...] = ()
    # Of fields, whose value is a policy, or a tag.
    attributes: tuple[str, ...] = ()
    # Dotted paths.
    fields: tuple[tuple[str, Action], ...] = ()
    # Dead letters are kept without their bytes; else encrypted.
    redacts: bool = False
    # Names of the KEKs whose fields are decrypted first.
    decrypts: tuple[str, ...] = ()

    @cached_property
    def by_path(self) -> Mapping[tuple[str, ...], Action]:
        """The policies of paths."""
        return {tuple(path.split(".")): action for path, action in self.fields}

    def needs(self, kind: Kind) -> bool:
        """Return whether values get this policy for sure; what attributes say, only schemas tell."""
        if kind == "encrypt" and not self.redacts:
            return True
        return any(action.kind == kind for _, action in (*self.tags, *self.fields))

    def read_attributes(self, part: Mapping[str, Any], path: str) -> list[tuple[Action, str]]:
        """Return what the attributes of a field or a type say, each with its source, such as `tag PII`.

        Raises UnknownTag. `path`: of the field, for the message.
        """
        sourced_actions = list[tuple[Action, str]]()
        for action, source in self._each_attribute(part):
            if action is None:
                raise UnknownTag(
                    f"field {path!r} has the tag {source!r}, for which there is no policy; add one to privacy.tags, or "
                    "name the field in privacy.fields"
                )
            sourced_actions.append((action, source))
        return sourced_actions

    def read_known_attributes(self, part: Mapping[str, Any], _: str) -> list[tuple[Action, str]]:
        """Return what the attributes of a field or a type say, but not tags without a policy."""
        return [(action, source) for action, source in self._each_attribute(part) if action is not None]

    def _each_attribute(self, part: Mapping[str, Any]) -> Iterator[tuple[Action | None, str]]:
        """Yield each policy with its source; None with each tag that has no policy."""
        tags = dict(self.tags)
        confluent_tags = part.get(CONFLUENT_TAGS)
        if confluent_tags is None:
            confluent_tags = []
        elif not isinstance(confluent_tags, list):
            confluent_tags = [confluent_tags]
        for tag in confluent_tags:
            if isinstance(tag, str) and tag in tags:
                yield tags[tag], f"tag {tag}"
            else:
                yield None, str(tag)
        for attribute in self.attributes:
            setting = part.get(attribute)
            # A 0 is no word that says anything, and equals False.
            if setting is None or setting is False:
                continue
            tag = setting
            if setting is True:
                tag = attribute
            if isinstance(tag, str) and tag in tags:
                yield tags[tag], f"tag {tag}"
                continue
            try:
                action = Action.of(setting)
            except ValueError:
                yield None, str(tag)
            else:
                yield action, f"attribute {attribute}"

    def to_json(self) -> dict[str, Any]:
        """Return them as a configuration has them, without what is empty."""
        document = {
            "tags": {tag: action.setting for tag, action in self.tags},
            "attributes": list(self.attributes),
            "fields": {path: action.setting for path, action in self.fields},
            "decrypt": sorted(self.decrypts),
            "dead_letters": "redact" if self.redacts else "",
        }
        return {key: value for key, value in document.items() if value}


def fingerprint(policies: Mapping[str, Any]) -> int:
    """Return 63 bits of the SHA-256 of policies as `to_json` writes them; 0: there are none."""
    if not policies:
        return 0
    text = json.dumps(policies, separators=(",", ":"), sort_keys=True, ensure_ascii=False)
    return int.from_bytes(sha256(text.encode()).digest()[:8], "big") >> 1
