"""The transaction log: entries, snapshots, commits, and changes by other writers."""
