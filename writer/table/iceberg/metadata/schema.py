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

from headrace.writer.batch.staging.table_file import NAMES_IN_ICEBERG

MAPPING = "schema.name-mapping.default"
_NAMES_IN_FILES = {table_name: file_name for file_name, table_name in NAMES_IN_ICEBERG.items()}
# Id of the first field of a partition spec, by Iceberg's convention.
_FIRST_PARTITION_ID = 1000


def schema_of(columns: pa.Schema) -> Schema:
    """Return the columns with field ids, in the order that a catalog gives them out to a new table."""
    return assign_fresh_schema_ids(visit_pyarrow(with_iceberg_names(columns), _ConvertToIcebergWithoutIDs()))


def columns_of(schema: Schema) -> pa.Schema:
    """Return the columns of a table by the names that they have in files."""
    columns = schema_to_pyarrow(schema, include_field_ids=False)
    return pa.schema([column.with_name(name_in_files(column.name)).with_nullable(True) for column in columns])


def column_paths(columns: pa.Schema) -> set[str]:
    """Return the names of all columns and of the fields within them, in lower case, such as spots.element.x."""
    return {name_in_files(name).lower() for name in index_name_by_id(schema_of(columns)).values()}


def with_iceberg_names(columns: pa.Schema) -> pa.Schema:
    """Return the columns by the names that they have in Iceberg."""
    return pa.schema([column.with_name(name_in_iceberg(column.name)).with_nullable(True) for column in columns])


def name_in_files(name: str) -> str:
    """Return the name in files of a column of the table."""
    return _NAMES_IN_FILES.get(name, name)


def name_in_iceberg(name: str) -> str:
    """Return the name in the table of a column of files."""
    return NAMES_IN_ICEBERG.get(name, name)


def spec_of(schema: Schema, bucket_columns: Sequence[str]) -> PartitionSpec:
    """Return the partition spec: the bucket columns as they are."""
    fields = [
        PartitionField(schema.find_field(name).field_id, field_id, IdentityTransform(), name)
        for field_id, name in enumerate(bucket_columns, _FIRST_PARTITION_ID)
    ]
    return PartitionSpec(*fields, spec_id=0)


def mapping_of(schema: Schema, current: str | None = None) -> str:
    """Return the table property that lets readers find the columns of files without field ids, as JSON.

    `current`: what the property is. It stays as it is where it names all columns, down to the innermost fields. Names
    that it has besides stay, too: another client may know files by them.
    """
    wanted = create_mapping_from_schema(schema).root
    for field in wanted:
        field.names.extend([_NAMES_IN_FILES[name] for name in field.names if name in _NAMES_IN_FILES])
    try:
        current_fields = parse_mapping_from_json(current).root if current else []
    except ValueError:
        # No reader understands it.
        current_fields = []
    merged = _merge_mappings(current_fields, wanted, index_name_by_id(schema).keys())
    if current and merged == current_fields:
        return current
    return NameMapping(merged).model_dump_json()


def _merge_mappings(
    current: Sequence[MappedField], wanted: Sequence[MappedField], ids: Collection[int]
) -> list[MappedField]:
    """Return the wanted fields, each with its current names, and the current fields whose id the schema lacks.

    `ids`: of all fields of the schema.
    """
    current_by_id = {field.field_id: field for field in current}
    wanted_names = set[str]()
    for field in wanted:
        wanted_names.update(field.names)
    merged = []
    for field in wanted:
        names = field.names
        inner_fields = field.fields
        current_field = current_by_id.get(field.field_id)
        if current_field is not None:
            current_names = [name for name in current_field.names if name in names or name not in wanted_names]
            names = [*current_names, *(name for name in names if name not in current_names)]
            inner_fields = _merge_mappings(current_field.fields, inner_fields, ids)
        merged.append(_mapped_field(field, names, inner_fields))
    for field in current:
        names = [name for name in field.names if name not in wanted_names]
        if field.field_id not in ids and names:
            merged.append(_mapped_field(field, names, field.fields))
    return merged


def _mapped_field(field: MappedField, names: Sequence[str], fields: Sequence[MappedField]) -> MappedField:
    return MappedField.model_validate({"field-id": field.field_id, "names": names, "fields": fields})
