"""Compaction, vacuum, retention, row deletion, the replay of dead letters, and the rotation of keys."""
