"""Which masked positions become tokens."""
