"""What a person and a machine see of the writer: verbs that look at it, and what a running driver tells."""
