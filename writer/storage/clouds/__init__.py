"""Google Cloud Storage and Azure Blob Storage, both by obstore."""
