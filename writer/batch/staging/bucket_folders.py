"""Names of the folders of buckets. Pure."""

from collections.abc import Sequence
from hashlib import sha256
from urllib.parse import quote, unquote

from headrace.writer.core.files import BucketKey

HIVE_NULL = "__HIVE_DEFAULT_PARTITION__"
# The limit of file systems.
_FOLDER_BYTES_MAX = 255
# Of all folders of a bucket: a key in S3 has 1,024 bytes, with the table's location and a file.
_FOLDERS_BYTES_MAX = 600
_FOLDER_BYTES_MIN = 64
# Characters of a column, and of a value, where the log holds both.
_SAFE_MAX = 80


def bucket_folder(columns: Sequence[str], key: BucketKey, *, hive: bool) -> str:
    """Return the folders of a bucket below its table, without entropy; `hive`: named as readers take values from."""
    if not columns:
        return ""
    if hive:
        bytes_max = folder_bytes_max(len(columns))
        return "/".join(hive_folder(column, value, bytes_max) for column, value in zip(columns, key, strict=True))
    length_max = min(_SAFE_MAX, _FOLDERS_BYTES_MAX // (2 * len(columns)))
    return "/".join(_folder(column, value, length_max) for column, value in zip(columns, key, strict=True))


def folder_bytes_max(columns: int) -> int:
    """Return how long the name of one folder may be, by the number of bucket columns."""
    return min(_FOLDER_BYTES_MAX, max(_FOLDER_BYTES_MIN, _FOLDERS_BYTES_MAX // columns))


def _folder(column: str, value: str | None, length_max: int) -> str:
    """Name a bucket's directory: one segment of ASCII. It may lose detail, because the log holds column and value."""
    name = _make_safe(column, length_max)
    # Vacuum and readers pass over folders that begin so.
    if name.startswith(("_", ".")):
        name = f"x{name}"
    if value is None:
        return f"{name}={HIVE_NULL}"
    return f"{name}={_make_safe(value, length_max)}"


def _make_safe(text: str, length_max: int) -> str:
    safe = "".join(c if c.isascii() and (c.isalnum() or c in "-_.") else "_" for c in text)
    return safe[:length_max] or "_"


def hive_folder(column: str, value: str | None, bytes_max: int = _FOLDER_BYTES_MAX) -> str:
    """Name a bucket's directory as Hive does: readers take the value from it.

    What is longer than file systems allow is cut, with a digest that keeps it apart from others.
    """
    name = _shorten(column, bytes_max - len(f"={HIVE_NULL}"))
    # Hive has no empty text.
    if not value:
        return f"{name}={HIVE_NULL}"
    return f"{name}={_shorten(value, bytes_max - len(f'{name}='.encode()))}"


def _shorten(text: str, bytes_max: int) -> str:
    """Return a text with its ASCII characters as Hive escapes them, in no more bytes."""
    escaped = [quote(c, safe="") if c.isascii() else c for c in text]
    name = "".join(escaped)
    if len(name.encode()) <= bytes_max:
        return name
    digest = "~" + sha256(text.encode()).hexdigest()[:16]
    prefix = list[str]()
    size = len(digest)
    for piece in escaped:
        size += len(piece.encode())
        if size > bytes_max:
            break
        prefix.append(piece)
    return "".join(prefix) + digest


def hive_value(folder: str) -> str | None:
    """Return the bucket's value from a directory's name."""
    value = folder.rstrip("/").partition("=")[2]
    return None if value == HIVE_NULL else unquote(value)
