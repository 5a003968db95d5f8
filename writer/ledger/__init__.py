"""What became of every record: the account that outlives the log, and its proof."""
