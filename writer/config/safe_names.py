"""Names of folders and of tables in a catalog, made of names that producers choose. Pure.

Each name has a result of its own, so no producer takes the place of another's table by a name such as `.`. A name that
file systems and engines take stays as it is. Any other becomes its letters and a digest; no name that looks like that
stays as it is.
"""

import re
from hashlib import sha256

# Behind the location of a table: that of its late rows.
LATE = "_late"
# Folder of names without a namespace.
NO_NAMESPACE = "default"
# File systems take 255 bytes, and a late table adds some to the name of its target.
_LENGTH_MAX = 180
_DIGEST_LENGTH = 16
_LIKE_DIGESTED = re.compile(rf"_[0-9a-f]{{{_DIGEST_LENGTH}}}\Z", re.IGNORECASE)
_ODD_IN_FOLDER = re.compile(r"[^A-Za-z0-9_.-]")
_ODD_IN_IDENTIFIER = re.compile(r"[^A-Za-z0-9_]")
_WORD = "[A-Za-z0-9]+(?:_[A-Za-z0-9]+)*"
_WORDS = re.compile(rf"{_WORD}(?:[.-]{_WORD})*")
_IN_IDENTIFIER = str.maketrans({".": "__", "-": "___"})


def make_folder_name(name: str) -> str:
    """Return the folder of a name: one segment of a path that engines see, of letters, digits, `_`, `.` and `-`.

    It is never where late rows of another name would lie.
    """
    # Spark, Hive and Trino pass over what begins with _ or ., Spark over copies that go on. Windows cuts a last dot.
    is_odd = name.startswith(("_", ".", "-")) or name.endswith((".", "._COPYING_")) or _ODD_IN_FOLDER.search(name)
    is_late = name.casefold().endswith(LATE)
    if _may_stay(name) and not is_odd and not is_late:
        return name
    return _digest(name, _ODD_IN_FOLDER)


def make_namespace_folder_name(namespace: str | None) -> str:
    """Return the folder of a namespace; None: of names without one."""
    if namespace is None:
        return NO_NAMESPACE
    is_taken = namespace.casefold() == NO_NAMESPACE
    if is_taken:
        return _digest(namespace, _ODD_IN_FOLDER)
    return make_folder_name(namespace)


def make_identifier(name: str) -> str:
    """Return what a name is called in a catalog: letters, digits and `_`.

    Two `_` stand for a dot, three for a hyphen.
    """
    if not (_may_stay(name) and _WORDS.fullmatch(name)):
        return _digest(name, _ODD_IN_IDENTIFIER)
    return name.translate(_IN_IDENTIFIER)


def _may_stay(name: str) -> bool:
    """Return whether a name is short enough, and could not be taken for the result of another one."""
    return 0 < len(name.translate(_IN_IDENTIFIER)) <= _LENGTH_MAX and not _LIKE_DIGESTED.search(name)


def _digest(name: str, odd: re.Pattern[str]) -> str:
    readable = re.sub(r"\A[_.-]+", "", odd.sub("_", name))[:_LENGTH_MAX] or "x"
    digest = sha256(name.encode(errors="surrogatepass")).hexdigest()
    return f"{readable}_{digest[:_DIGEST_LENGTH]}"
