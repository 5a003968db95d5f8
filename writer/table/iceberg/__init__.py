"""Tables in Apache Iceberg's format, known to a catalog by name."""
