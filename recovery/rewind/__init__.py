"""Takes back what landed wrong, rows and offsets together."""
