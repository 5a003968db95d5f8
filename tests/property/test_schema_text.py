"""Admitting any text as a schema ends in admitted or rejected, in each way that a schema takes, and harms no other."""

from writer.batch.record_columns import KeyColumn, RecordColumns  # noqa
