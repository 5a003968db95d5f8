"""The commands of recovery, one module each."""
