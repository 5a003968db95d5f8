"""Reads ranges of Kafka partitions into Arrow columns, without a JVM, a Kafka client or a Python object per record."""
