"""A table with sealed buckets, and the schemas of its records, which document their fields, as files."""

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from tests.support.sealed_lake import SealedLake

# As Avro documents a record, with what YAML and Jinja would take for their own.
DOCS = {
    "id": "Number: of the click # {{ not a template }}",
    "user": '- it\'s\n"quoted"',
    "clean": "",
    "price": "{% x %}",
}
AVRO_TYPES = {
    "id": "long",
    "at": {"type": "long", "logicalType": "timestamp-micros"},
    "user": "string",
    "price": {"type": "bytes", "logicalType": "decimal", "precision": 12, "scale": 2},
    "clean": "boolean",
}


def click_schema(docs: Mapping[str, str], doc: str = "A click.", name: str = "Click") -> dict[str, Any]:
    fields = [{"name": field, "type": kind, "doc": docs.get(field, "")} for field, kind in AVRO_TYPES.items()]
    return {"type": "record", "name": name, "namespace": "shop", "doc": doc, "fields": fields}


def lake_with_schemas(root: Path, form: str, *schemas: Mapping[str, Any], **pipeline: Any) -> SealedLake:
    files = {}
    for number, schema in enumerate(schemas, 1):
        file = root / f"{number}.avsc"
        file.write_text(json.dumps(schema))
        files[number] = str(file)
    return SealedLake(root, form, sections={"registry": {"files": files}}, **pipeline)
