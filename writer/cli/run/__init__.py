"""Commands around the running writer: configure, check, run, pause, limit it."""
