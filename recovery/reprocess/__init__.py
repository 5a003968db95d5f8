"""Makes the rows of buckets anew from their records, by the schemas and rules of today, while the driver writes."""
