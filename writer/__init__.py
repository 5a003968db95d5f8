"""The streaming warehouse writer: Kafka Avro events into event-time buckets of a lake, exactly once."""
