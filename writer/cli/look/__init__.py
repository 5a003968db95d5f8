"""Commands that look: at pipelines, buckets, commits and tables. None writes."""
