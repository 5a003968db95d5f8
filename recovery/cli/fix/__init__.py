"""Commands that mend what a table holds, from Kafka or an archive: gaps, backfill, reprocess, rewind."""
