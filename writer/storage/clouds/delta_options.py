"""delta-rs's options for tables in Google Cloud Storage and Azure Blob Storage.

They hold no credentials: delta-rs looks for them in the same variables, files and services as obstore, for both are
built on one library.
"""

from headrace.writer.storage.clouds.obstore_client import BucketAddress, azure_address, gcs_address
from headrace.writer.storage.settings import AzureSettings, GcsSettings


def gcs_options(location: str, settings: GcsSettings) -> dict[str, str]:
    """Return the options for a gs:// location."""
    address = gcs_address(location, settings)
    options = _common_options(address)
    if address.endpoint:
        options["google_base_url"] = address.endpoint
    if address.service_account_file:
        options["google_service_account"] = address.service_account_file
    return options


def azure_options(location: str, settings: AzureSettings) -> dict[str, str]:
    """Return the options for an az:// or abfss:// location."""
    address = azure_address(location, settings)
    options = _common_options(address)
    if address.account:
        options["azure_storage_account_name"] = address.account
    if address.endpoint:
        options["azure_storage_endpoint"] = address.endpoint
    return options


def _common_options(address: BucketAddress) -> dict[str, str]:
    options = {
        "retry_timeout": f"{address.retry_timeout.total_seconds():.0f}s",
        "timeout": "30s",
        "connect_timeout": "5s",
    }
    if address.endpoint and address.endpoint.startswith("http://"):
        options["allow_http"] = "true"
    return options
