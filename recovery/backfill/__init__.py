"""Backfills gaps from Kafka, a mirror or an archive, in chunks, while the driver writes."""
