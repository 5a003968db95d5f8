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

from headrace.writer.core.catalog_table import DATA
from headrace.writer.storage.locations import store_at
from headrace.writer.storage.settings import AzureSettings, GcsSettings, StoreSettings
from headrace.writer.table.iceberg.metadata.data_files import canonical_path

_SCHEMES = ("gs", "abfss")
_SETTINGS = "headrace.stores"
_SECONDS = "retry_timeout"


class BucketFileIO(PyArrowFileIO):
    """Files of any location that a table may have. Its properties hold the settings of the stores."""

    @staticmethod
    def parse_location(location: str, properties: Properties = EMPTY_DICT) -> tuple[str, str, str]:
        """Return scheme, the folder of the table with bucket and account, and the path that begins with the bucket."""
        scheme, authority, path = PyArrowFileIO.parse_location(canonical_path(location), properties)
        if scheme not in _SCHEMES:
            return scheme, authority, path
        folder = _table_folder(path)
        container, separator, _ = authority.partition("@")
        if separator:
            path = container + path.removeprefix(authority)
        return scheme, folder, path

    def _initialize_fs(self, scheme: str, netloc: str | None = None) -> fs.FileSystem:
        if scheme not in _SCHEMES:
            return super()._initialize_fs(scheme, netloc)
        # It has the budget of requests that everything else of the table has.
        filesystem, _ = store_at(f"{scheme}://{netloc}", _read_settings(self.properties[_SETTINGS])).files()
        return filesystem


def _table_folder(path: str) -> str:
    """Return the folder of the table that a file belongs to.

    >>> _table_folder("lake/clicks/metadata/snap-1.avro")
    'lake/clicks'
    """
    folder = path.rpartition("/")[0]
    if folder.endswith("/metadata"):
        return folder.removesuffix("/metadata")
    table, is_inside, _ = f"{folder}/".rpartition(f"/{DATA}/")
    return table if is_inside else folder


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
