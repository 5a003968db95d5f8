"""What a driver does to buckets beside its streams: closes, merges, seals, drops, calls hooks."""
