"""Files of a table written anew, and those that nobody needs removed: compaction and vacuum."""
