"""Asks Kafka brokers, and reads ranges of partitions into Arrow columns without a JVM or a Python object per record."""
