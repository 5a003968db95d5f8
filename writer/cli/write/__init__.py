"""Commands that write: to a table, its log, or Kafka."""
