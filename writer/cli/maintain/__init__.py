"""Commands of the upkeep of tables: files, buckets, keys, schemas, hooks, other tables."""
