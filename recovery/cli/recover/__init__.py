"""Commands of recovery: the supervisor, and the examination of checkpoints."""
