"""Opens the store of a location. Only this module reads schemes."""

import re

from headrace.writer.storage.base import Store
from headrace.writer.storage.local import LocalStore
from headrace.writer.storage.settings import StoreSettings

_S3 = "s3://"
_BUCKET = re.compile(r"[a-z0-9][a-z0-9.-]{1,61}[a-z0-9]")
# Readers take these for a pattern or an escape.
_PATTERN_CHARACTERS = frozenset("[]{}%?*#")


def parse_location(location: str) -> str:
    """Return a location as it was written in a file, in its one form. Raises ValueError with the fix."""
    scheme, separator, path = location.partition("://")
    if scheme in ("s3a", "s3n") and separator:
        raise ValueError(f"{location}: write it as s3://{path}; headrace tells Spark the rest")
    if separator and scheme not in ("file", "s3"):
        raise ValueError(f"{location}: only paths and s3:// are supported yet, not {scheme}://")
    if not separator and not location.startswith("/"):
        raise ValueError(f"{location!r} is relative; write the absolute path, such as /lake/clicks")
    bucket, _, key = path.rstrip("/").partition("/")
    if scheme == "s3" and not (_BUCKET.fullmatch(bucket) and key and "//" not in key):
        # Credentials do not belong there, nor into a message.
        shown = re.sub(r"//[^/]*@", "//***@", location)
        raise ValueError(f"{shown} names no bucket and folder; write it as s3://bucket/folder")
    pattern_characters = sorted(_PATTERN_CHARACTERS.intersection(location))
    if pattern_characters:
        raise ValueError(
            f"{location} has {' '.join(pattern_characters)} in it, which readers take for a pattern or an escape; "
            "rename it"
        )
    return location.removeprefix("file://").rstrip("/")


def on_s3(location: str) -> bool:
    """Return whether a location lies in a bucket."""
    return location.startswith(_S3)


def store_at(location: str, stores: StoreSettings | None = None) -> Store:
    """Return the store of what lies below a location: an absolute path, or s3://bucket/prefix."""
    if on_s3(location):
        from headrace.writer.storage.s3 import s3_store

        return s3_store(location, (stores or StoreSettings()).s3)
    return LocalStore(location)


def delta_options(location: str, stores: StoreSettings | None = None) -> dict[str, str] | None:
    """Return delta-rs's options for a location; None for a path."""
    if not on_s3(location):
        return None
    from headrace.writer.storage.s3 import resolve_settings

    settings = resolve_settings((stores or StoreSettings()).s3)
    options = {
        "AWS_REGION": settings.region or "",
        # delta-rs puts its own entries, too, only where none is.
        "aws_conditional_put": "etag",
        "AWS_VIRTUAL_HOSTED_STYLE_REQUEST": str(not settings.path_style).lower(),
        "retry_timeout": f"{settings.retry_timeout.total_seconds():.0f}s",
        "timeout": "30s",
        "connect_timeout": "5s",
    }
    if settings.endpoint:
        options["AWS_ENDPOINT_URL"] = settings.endpoint
        if settings.endpoint.startswith("http://"):
            options["AWS_ALLOW_HTTP"] = "true"
    return options


def for_spark(location: str) -> str:
    """Return the location as Spark's own file systems name it."""
    return location.replace(_S3, "s3a://", 1) if on_s3(location) else location
