"""The writer and others that carry the same topic, each in a process of its own."""
