"""A configuration to begin with, proposed from a sample of a topic: `headrace init`."""
