"""The files that a version of a Delta table names. For those who look at all of them: a commit does not."""

from urllib.parse import unquote

import pyarrow as pa
from deltalake import DeltaTable

from writer.ledger.deep import DataFile


def listed(table: DeltaTable) -> list[DataFile]:
    """List the files of the version that a table was opened at."""
    found = pa.table(table.get_add_actions(flatten=True))
    names = {"path", "size_bytes", "num_records", "min._offset", "max._offset"} & set(found.column_names)
    return [
        DataFile(
            unquote(row["path"]), row.get("num_records"), row.get("min._offset"), row.get("max._offset"),
            row["size_bytes"],
        )
        for row in found.select(sorted(names)).to_pylist()  # one turn a file
    ]  # fmt: skip
