"""How pyiceberg reaches the files of a table in S3: as its own client does, with fewer requests."""

from pyarrow.fs import FileSystem, S3FileSystem
from pyiceberg.io import S3_RETRY_STRATEGY_IMPL
from pyiceberg.io.pyarrow import PyArrowFileIO


class FewRequestsFileIO(PyArrowFileIO):
    """Writes a manifest, a list or a metadata file by one PUT, where pyiceberg begins an upload in parts and ends it.

    Parts are only for objects of 10 MiB and more. Either way a file is there whole or not at all.
    """

    def _initialize_s3_fs(self, netloc: str | None) -> FileSystem:
        filesystem = super()._initialize_s3_fs(netloc)
        if self.properties.get(S3_RETRY_STRATEGY_IMPL):
            # A file system does not tell its strategy, and would lose it.
            return filesystem
        # pyiceberg has no setting for it; a file system tells how it was made, without credentials that it found.
        _, (settings,) = filesystem.__reduce__()
        if not settings["proxy_options"]["host"]:
            settings["proxy_options"] = None
        return S3FileSystem(**{**settings, "allow_delayed_open": True})
