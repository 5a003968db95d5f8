"""Commands before the first start: a configuration to begin with, and the demo."""
