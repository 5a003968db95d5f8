"""The streaming warehouse writer: Kafka records into event-time buckets of a lake, exactly once."""
