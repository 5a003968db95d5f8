"""JSON: the columns that are declared for its values or that a JSON Schema gives, and the decoding of values."""
