"""Opens the store of a location. Only this module reads schemes."""

from headrace.writer.storage.base import Store
from headrace.writer.storage.bucket_locations import (
    AZURE_SCHEMES,
    SCHEMES,
    find_own_form,
    parse_bucket_location,
    without_credentials,
)
from headrace.writer.storage.local import LocalStore
from headrace.writer.storage.settings import StoreSettings

_S3 = "s3://"
_BUCKETS = tuple(f"{scheme}://" for scheme in SCHEMES)
# Readers take these for a pattern or an escape.
_PATTERN_CHARACTERS = frozenset("[]{}%?*#")


def parse_location(location: str) -> str:
    """Return a location as it was written in a file, in its one form. Raises ValueError with the fix."""
    scheme, separator, _ = location.partition("://")
    own_form = find_own_form(location)
    if own_form is not None:
        more = "; headrace tells Spark the rest" if scheme in ("s3a", "s3n") else ""
        raise ValueError(f"{without_credentials(location)}: write it as {own_form}{more}")
    if separator and scheme not in ("file", *SCHEMES):
        raise ValueError(
            f"{without_credentials(location)}: only paths, s3://, gs://, az:// and abfss:// are supported, not "
            f"{scheme}://"
        )
    if not separator and not location.startswith("/"):
        raise ValueError(f"{location!r} is relative; write the absolute path, such as /lake/clicks")
    if in_bucket(location):
        parse_bucket_location(location)
    pattern_characters = sorted(_PATTERN_CHARACTERS.intersection(location))
    if pattern_characters:
        raise ValueError(
            f"{without_credentials(location)} has {' '.join(pattern_characters)} in it, which readers take for a "
            "pattern or an escape; rename it"
        )
    return location.removeprefix("file://").rstrip("/")


def in_bucket(location: str) -> bool:
    """Return whether a location lies in a bucket of a cloud, or of a store that speaks S3."""
    return location.startswith(_BUCKETS)


def on_azure(location: str) -> bool:
    """Return whether a location lies in Azure Blob Storage."""
    return location.partition("://")[0] in AZURE_SCHEMES


def on_s3(location: str) -> bool:
    """Return whether a location lies in a bucket that is reached as S3 is."""
    return location.startswith(_S3)


def store_at(location: str, stores: StoreSettings | None = None) -> Store:
    """Return the store of what lies below a location: an absolute path, or a folder of a bucket."""
    if not in_bucket(location):
        return LocalStore(location)
    settings = stores or StoreSettings()
    match location.partition("://")[0]:
        case "s3":
            from headrace.writer.storage.s3 import s3_store

            return s3_store(location, settings.s3)
        case "gs":
            from headrace.writer.storage.clouds.obstore_client import gcs_store

            return gcs_store(location, settings.gcs)
        case _:
            from headrace.writer.storage.clouds.obstore_client import azure_store

            return azure_store(location, settings.azure)


def delta_options(location: str, stores: StoreSettings | None = None) -> dict[str, str] | None:
    """Return delta-rs's options for a location; None for a path. Credentials it finds where the store finds them."""
    if not in_bucket(location):
        return None
    if not on_s3(location):
        from headrace.writer.storage.clouds.delta_options import azure_options, gcs_options

        settings = stores or StoreSettings()
        if on_azure(location):
            return azure_options(location, settings.azure)
        return gcs_options(location, settings.gcs)
    from headrace.writer.storage.s3 import resolve_settings

    s3 = resolve_settings((stores or StoreSettings()).s3)
    options = {
        "AWS_REGION": s3.region or "",
        # delta-rs puts its own entries, too, only where none is.
        "aws_conditional_put": "etag",
        "AWS_VIRTUAL_HOSTED_STYLE_REQUEST": str(not s3.path_style).lower(),
        "retry_timeout": f"{s3.retry_timeout.total_seconds():.0f}s",
        "timeout": "30s",
        "connect_timeout": "5s",
    }
    if s3.endpoint:
        options["AWS_ENDPOINT_URL"] = s3.endpoint
        if s3.endpoint.startswith("http://"):
            options["AWS_ALLOW_HTTP"] = "true"
    return options


def for_spark(location: str) -> str:
    """Return the location as Spark's own file systems name it."""
    return location.replace(_S3, "s3a://", 1) if on_s3(location) else location
