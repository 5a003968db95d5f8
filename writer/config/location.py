"""The type of a setting that names a location."""

from typing import Annotated

from pydantic import AfterValidator

from writer.storage import locations

# The absolute path of a directory, or s3://bucket/folder.
Location = Annotated[str, AfterValidator(locations.parse_location)]
