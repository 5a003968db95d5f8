"""Deletes by equality, written by Iceberg's own library as Flink's upserts write them; no SQL of Spark's makes them."""

from typing import Any


def delete_by_equality(session: Any, name: str, below: int) -> None:
    """Delete the rows of a table in one partition whose `_offset` is lower, by a file of their values alone."""
    jvm, gateway = session._jvm, session._sc._gateway
    iceberg, column = jvm.org.apache.iceberg, jvm.java.util.Collections.singletonList("_offset")
    table = iceberg.spark.Spark3Util.loadIcebergTable(session._jsparkSession, name)
    schema, partition = table.schema().select(column), table.newScan().planFiles().iterator().next().file().partition()
    ids = gateway.new_array(jvm.int, 1)
    ids[0] = schema.findField("_offset").fieldId()
    factory = iceberg.data.GenericAppenderFactory(table.schema(), table.spec(), ids, schema, None)
    file = table.io().newOutputFile(table.locationProvider().newDataLocation("equality-deletes.parquet"))
    encrypted = iceberg.encryption.EncryptedFiles.plainAsEncryptedOutput(file)
    writer = factory.newEqDeleteWriter(encrypted, iceberg.FileFormat.PARQUET, partition)
    lower = iceberg.expressions.Expressions.lessThan("_offset", below)
    for record in iceberg.data.IcebergGenerics.read(table).select(column).where(lower).build().iterator():
        writer.write(record)
    writer.close()
    table.newRowDelta().addDeletes(writer.toDeleteFile()).commit()
