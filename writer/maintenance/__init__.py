"""Compaction, vacuum, retention, row deletion and the replay of dead letters."""
