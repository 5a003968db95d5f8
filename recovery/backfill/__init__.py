"""Brings the records of gaps: from Kafka, from a mirror, from an archive, in chunks, beside the live writer."""
