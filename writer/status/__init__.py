"""What a running pipeline reports of itself, and what the table tells without a driver."""
