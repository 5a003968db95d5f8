"""Says that a bucket is not there, and what to do: of every client, also of Arrow's, which says only the first."""

import re
from collections.abc import Iterator
from contextlib import contextmanager

from headrace.writer.storage.base import StoreError

# Behind it stands the id of the request.
_NO_BUCKET = re.compile(r"key '([^']*)' in bucket '([^']*)': AWS Error (NO_SUCH_BUCKET) during (\w+) operation")


def missing_bucket(bucket: str, word: str, answer: str) -> tuple[str, str]:
    """Return answer and fix for a bucket that is not there. `word`: what it is called in that cloud.

    >>> missing_bucket("lake", "bucket", "404 NoSuchBucket")[0]
    "there is no bucket 'lake': 404 NoSuchBucket"
    """
    fix = f"Make the {word}, or correct the location; if it held a table, restore it with all that it held."
    return f"there is no {word} {bucket!r}: {answer}", fix


@contextmanager
def name_missing_bucket() -> Iterator[None]:
    """Raise StoreError for what Arrow raises where there is no bucket; anything else stays as it is."""
    try:
        yield
    except OSError as error:
        match = _NO_BUCKET.search(str(error))
        if match is None or isinstance(error, StoreError):
            raise
        key, bucket, code, request = match.groups()
        answer, fix = missing_bucket(bucket, "bucket", f"{code} in {request}")
        raise StoreError("write", f"s3://{bucket}/{key}", answer, fix) from error
