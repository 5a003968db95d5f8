"""Locations in buckets, as a person writes them: which clouds, which names, and what else they may have meant. Pure.

s3://bucket/folder                                        S3
gs://bucket/folder                                        Google Cloud Storage
az://container/folder                                     Azure Blob Storage, in the account of `azure.account`
abfss://container@account.dfs.core.windows.net/folder     Azure Blob Storage, in the account that it names
"""

import re
from dataclasses import dataclass

SCHEMES = ("s3", "gs", "az", "abfss")
AZURE_SCHEMES = ("az", "abfss")
ACCOUNT = re.compile(r"[a-z0-9]{3,24}")
_AZURE_HOST = ".dfs.core.windows.net"
_S3_BUCKET = re.compile(r"[a-z0-9][a-z0-9.-]{1,61}[a-z0-9]")
# A name with dots may be longer, as long as each part is not.
_GCS_BUCKET = re.compile(
    r"(?=.{3,222}$)[a-z0-9](?:[a-z0-9_-]{0,61}[a-z0-9])?(?:\.[a-z0-9](?:[a-z0-9_-]{0,61}[a-z0-9])?)*"
)
_ADDRESS = re.compile(r"\d+\.\d+\.\d+\.\d+")
# No two hyphens stand together.
_CONTAINER = re.compile(r"(?=.{3,63}$)[a-z0-9]+(?:-[a-z0-9]+)*")
_FORMS = {
    "s3": "s3://bucket/folder",
    "gs": "gs://bucket/folder",
    "az": "az://container/folder",
    "abfss": "abfss://container@account.dfs.core.windows.net/folder",
}
# Names by which other programs call the same stores.
_OTHER_NAMES = {"s3a": "s3", "s3n": "s3", "gcs": "gs", "azure": "az", "adl": "az"}
_OTHER_AZURE = re.compile(r"(?:abfs|wasbs?)://([a-z0-9-]+)@([a-z0-9]+)\.(?:dfs|blob)\.core\.windows\.net/?(.*)")
_AZURE_URL = re.compile(r"https?://([a-z0-9]+)\.(?:dfs|blob)\.core\.windows\.net/([a-z0-9-]+)/?(.*)")
_GOOGLE_URL = re.compile(r"https?://storage\.(?:googleapis|cloud\.google)\.com/([a-z0-9._-]+)/?(.*)")


@dataclass(frozen=True)
class BucketLocation:
    """A folder of a bucket. `account`: of Azure, where the location names it."""

    scheme: str
    bucket: str
    folder: str
    account: str | None = None


def split_bucket_location(location: str) -> BucketLocation:
    """Return the parts of a location with one of SCHEMES, as they are. A bucket alone has an empty folder."""
    scheme, _, path = location.partition("://")
    authority, _, folder = path.rstrip("/").partition("/")
    if scheme != "abfss":
        return BucketLocation(scheme, authority, folder)
    bucket, _, host = authority.partition("@")
    return BucketLocation(scheme, bucket, folder, host.removesuffix(_AZURE_HOST))


def parse_bucket_location(location: str) -> BucketLocation:
    """Return the parts of a location with one of SCHEMES. Raises ValueError with the fix, and without credentials."""
    parsed = split_bucket_location(location)
    scheme, bucket, folder = parsed.scheme, parsed.bucket, parsed.folder
    if scheme == "abfss":
        host = location.removeprefix("abfss://").partition("/")[0].partition("@")[2]
        if not host.endswith(_AZURE_HOST) or not ACCOUNT.fullmatch(parsed.account or ""):
            raise ValueError(
                f"{without_credentials(location)} names no account as abfss:// has it; write it as {_FORMS[scheme]}, "
                "or as az://container/folder with azure.account, and azure.endpoint where it is no account of "
                "core.windows.net"
            )
    if not _is_bucket(scheme, bucket) or not folder:
        noun = "container" if scheme in AZURE_SCHEMES else "bucket"
        raise ValueError(f"{without_credentials(location)} names no {noun} and folder; write it as {_FORMS[scheme]}")
    for name in folder.split("/"):
        if not name or (scheme != "s3" and name in (".", "..")):
            raise ValueError(f"{location} has a folder without a name, or named . or ..; write it as {_FORMS[scheme]}")
        if scheme in AZURE_SCHEMES and name.endswith("."):
            raise ValueError(f"{location} has a folder whose name ends with a dot, which Azure drops; rename it")
    return parsed


def find_own_form(location: str) -> str | None:
    """Return how a location that other programs write otherwise is written here; None: it is no such one."""
    bare, _, _ = location.partition("?")
    scheme, _, path = bare.partition("://")
    if match := _OTHER_AZURE.fullmatch(bare):
        container, account, folder = match.groups()
        return f"abfss://{container}@{account}{_AZURE_HOST}/{folder}"
    if match := _AZURE_URL.fullmatch(bare):
        account, container, folder = match.groups()
        return f"abfss://{container}@{account}{_AZURE_HOST}/{folder}"
    if match := _GOOGLE_URL.fullmatch(bare):
        bucket, folder = match.groups()
        return f"gs://{bucket}/{folder}"
    if scheme in _OTHER_NAMES and "@" not in path.partition("/")[0]:
        return f"{_OTHER_NAMES[scheme]}://{path}"
    return None


def without_credentials(location: str) -> str:
    """Return a location for a message: without what stands before an @, and without a query, which may be a SAS."""
    shown = re.sub(r"//[^/]*@", "//***@", location)
    return re.sub(r"\?.*", "?***", shown, flags=re.DOTALL)


def _is_bucket(scheme: str, bucket: str) -> bool:
    match scheme:
        case "s3":
            return bool(_S3_BUCKET.fullmatch(bucket))
        case "gs":
            is_googles = bucket.startswith("goog") or "google" in bucket
            return bool(_GCS_BUCKET.fullmatch(bucket)) and not is_googles and not _ADDRESS.fullmatch(bucket)
        case _:
            return bool(_CONTAINER.fullmatch(bucket))
