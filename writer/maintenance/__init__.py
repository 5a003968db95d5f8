"""Work on tables beside the stream: compaction, retention, vacuum, deletion of rows, replay, migration, keys."""
