"""What keeps the writer going when checkpoints are lost, and files what had to be skipped."""
