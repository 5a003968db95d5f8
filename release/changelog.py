"""The changelog's section of a version, which becomes the notes of its release."""

import re
from dataclasses import dataclass
from datetime import date

from release.errors import ReleaseError

UNRELEASED = "unreleased"
_HEADING = re.compile(r"^## (?P<version>\S+), (?P<day>.+)$", re.MULTILINE)
# [text](target), where the target is a file of the repository.
_LINK = re.compile(r"\]\((?!https?://|#|mailto:)(?P<target>[^)\s]+)\)")


@dataclass(frozen=True)
class Section:
    """What a version changes."""

    text: str
    # None: the heading says that it is unreleased.
    day: date | None


def find_section(changelog: str, version: str) -> Section:
    """Return the section of a version. Raises ReleaseError if there is none, or nothing in it."""
    headings = list(_HEADING.finditer(changelog))
    for number, heading in enumerate(headings):
        if heading["version"] != version:
            continue
        following = headings[number + 1].start() if number + 1 < len(headings) else len(changelog)
        text = changelog[heading.end() : following].strip()
        if not text:
            raise ReleaseError(f"CHANGELOG.md says nothing below its heading of {version}. Write what changes.")
        return Section(text, _parse_day(heading["day"], version))
    versions = ", ".join(heading["version"] for heading in headings) or "none"
    raise ReleaseError(
        f"CHANGELOG.md has no section for {version}; it has {versions}. Add `## {version}, {UNRELEASED}`, and what "
        "changes."
    )


def _parse_day(text: str, version: str) -> date | None:
    if text == UNRELEASED:
        return None
    try:
        return date.fromisoformat(text)
    except ValueError:
        raise ReleaseError(
            f"CHANGELOG.md dates {version} with {text!r}. Write the day, such as 2026-12-24, or `{UNRELEASED}`."
        ) from None


def release_notes(section: Section, version: str, address: str, missing: list[str]) -> str:
    """Return the notes of a release: what is missing in it, then the section, whose links lead to `address`.

    `address`: where the files of the tag can be read. `missing`: a sentence for each.
    """
    text = _LINK.sub(lambda link: f"]({address}/{link['target']})", section.text)
    lines = [f"# headrace {version}", ""]
    if missing:
        lines += ["**Not in this release:**", "", *(f"- {sentence}" for sentence in missing), ""]
    return "\n".join([*lines, text, ""])
