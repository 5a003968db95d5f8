"""Turns a table's columns into Iceberg's schema, its partition spec, and the mapping from names in files to field ids.

Parquet files of headrace carry no field ids and no bucket columns: `schema.name-mapping.default` lets readers find the
columns by name, and the value of an identity partition stands in the manifest.

`_partition` is a name that Iceberg reserves: Spark reads a table with such a column and refuses to write to it. The
column is called `_kafka_partition` there; the mapping leads to the files' name.
"""

from collections.abc import Collection, Sequence

import pyarrow as pa
from pyiceberg.io.pyarrow import _ConvertToIcebergWithoutIDs, schema_to_pyarrow, visit_pyarrow
from pyiceberg.partitioning import PartitionField, PartitionSpec
from pyiceberg.schema import Schema, assign_fresh_schema_ids, index_name_by_id
from pyiceberg.table.name_mapping import (
    MappedField,
    NameMapping,
    create_mapping_from_schema,
    parse_mapping_from_json,
)
from pyiceberg.transforms import IdentityTransform

from writer.batch.staging.table_file import NAMES_IN_ICEBERG

MAPPING = "schema.name-mapping.default"
_IN_FILES = {name: file for file, name in NAMES_IN_ICEBERG.items()}
_FIRST_FIELD = 1000  # of a partition spec, by Iceberg's convention


def schema_of(columns: pa.Schema) -> Schema:
    """Return the columns with field ids, in the order that a catalog gives them out to a new table."""
    return assign_fresh_schema_ids(visit_pyarrow(renamed(columns), _ConvertToIcebergWithoutIDs()))


def columns_of(schema: Schema) -> pa.Schema:
    """Return the columns of a table by the names that they have in files."""
    found = schema_to_pyarrow(schema, include_field_ids=False)
    return pa.schema([column.with_name(in_files(column.name)).with_nullable(True) for column in found])


def paths(columns: pa.Schema) -> set[str]:
    """Return the names of all columns and of the fields within them, in lower case, such as spots.element.x."""
    return {in_files(name).lower() for name in index_name_by_id(schema_of(columns)).values()}


def renamed(columns: pa.Schema) -> pa.Schema:
    """Return the columns by the names that they have in Iceberg."""
    return pa.schema([column.with_name(in_iceberg(column.name)).with_nullable(True) for column in columns])


def in_files(name: str) -> str:
    """Return the name in files of a column of the table."""
    return _IN_FILES.get(name, name)


def in_iceberg(name: str) -> str:
    """Return the name in the table of a column of files."""
    return NAMES_IN_ICEBERG.get(name, name)


def spec_of(schema: Schema, bucket_columns: Sequence[str]) -> PartitionSpec:
    """Return the partition spec: the bucket columns as they are."""
    fields = (
        PartitionField(schema.find_field(name).field_id, _FIRST_FIELD + n, IdentityTransform(), name)
        for n, name in enumerate(bucket_columns)
    )
    return PartitionSpec(*fields, spec_id=0)


def mapping_of(schema: Schema, known: str | None = None) -> str:
    """Return the table property that lets readers find the columns of files without field ids, as JSON.

    `known`: what the property is. It stays as it is where it names all columns, down to the innermost fields. Names
    that it has besides stay, too: another client may know files by them.
    """
    wanted = create_mapping_from_schema(schema).root
    for field in wanted:
        field.names.extend([_IN_FILES[name] for name in field.names if name in _IN_FILES])
    try:
        before = parse_mapping_from_json(known).root if known else []
    except ValueError:  # no reader understands it
        before = []
    found = _completed(before, wanted, index_name_by_id(schema).keys())
    return known if known and found == before else NameMapping(found).model_dump_json()


def _completed(known: Sequence[MappedField], wanted: Sequence[MappedField], ids: Collection[int]) -> list[MappedField]:
    """Return the wanted fields, each with its known names, and the known fields that are none of the schema's `ids`."""
    by_id, taken = {one.field_id: one for one in known}, {name for one in wanted for name in one.names}
    found = []
    for field in wanted:
        names, inner = field.names, field.fields
        if (had := by_id.get(field.field_id)) is not None:
            kept = [name for name in had.names if name in names or name not in taken]
            names = [*kept, *(name for name in names if name not in kept)]
            inner = _completed(had.fields, inner, ids)
        found.append(_field(field, names, inner))
    others = ((one, [name for name in one.names if name not in taken]) for one in known if one.field_id not in ids)
    return [*found, *(_field(one, names, one.fields) for one, names in others if names)]


def _field(field: MappedField, names: Sequence[str], fields: Sequence[MappedField]) -> MappedField:
    return MappedField.model_validate({"field-id": field.field_id, "names": names, "fields": fields})
