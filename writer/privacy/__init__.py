"""Privacy: which fields are hashed, masked, encrypted or dropped, and with which keys. Arrow in, Arrow out."""
