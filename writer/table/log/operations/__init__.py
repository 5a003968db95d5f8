"""Operations, each a value that says everything about its log entry: facts, `txn` values, files, checks."""
