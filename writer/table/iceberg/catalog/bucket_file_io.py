"""How pyiceberg reaches files in Google Cloud Storage and Azure Blob Storage: as everything else of a table is reached.

pyiceberg's own classes look for credentials in other places than the rest of the process, and reach Azure by way of a
package that nothing else here needs.
"""

import json
from dataclasses import asdict
from datetime import timedelta

from pyarrow import fs
from pyiceberg.io.pyarrow import PyArrowFileIO
from pyiceberg.typedef import EMPTY_DICT, Properties

from headrace.writer.storage.locations import store_at
from headrace.writer.storage.settings import AzureSettings, GcsSettings, StoreSettings
from headrace.writer.table.iceberg.metadata.data_files import canonical_path

_SETTINGS = "headrace.stores"
_SECONDS = "retry_timeout"


class BucketFileIO(PyArrowFileIO):
    """Files of any location that a table may have. Its properties hold the settings of the stores."""

    @staticmethod
    def parse_location(location: str, properties: Properties = EMPTY_DICT) -> tuple[str, str, str]:
        """Return scheme, bucket with account, and the path that begins with the bucket."""
        scheme, authority, path = PyArrowFileIO.parse_location(canonical_path(location), properties)
        container, separator, _ = authority.partition("@")
        if separator:
            return scheme, authority, container + path.removeprefix(authority)
        return scheme, authority, path

    def _initialize_fs(self, scheme: str, netloc: str | None = None) -> fs.FileSystem:
        if scheme not in ("gs", "abfss"):
            return super()._initialize_fs(scheme, netloc)
        # A file system of a bucket is that of any folder in it.
        filesystem, _ = store_at(f"{scheme}://{netloc}/any", _read_settings(self.properties[_SETTINGS])).files()
        return filesystem


def bucket_properties(stores: StoreSettings) -> dict[str, str]:
    """Return pyiceberg's settings by which a catalog uses `BucketFileIO`."""
    settings = {
        name: {**asdict(store), _SECONDS: store.retry_timeout.total_seconds()}
        for name, store in (("gcs", stores.gcs), ("azure", stores.azure))
    }
    return {
        "py-io-impl": f"{BucketFileIO.__module__}.{BucketFileIO.__qualname__}",
        _SETTINGS: json.dumps(settings, sort_keys=True),
    }


def _read_settings(text: str) -> StoreSettings:
    settings = json.loads(text)
    for store in settings.values():
        store[_SECONDS] = timedelta(seconds=store[_SECONDS])
    return StoreSettings(gcs=GcsSettings(**settings["gcs"]), azure=AzureSettings(**settings["azure"]))
