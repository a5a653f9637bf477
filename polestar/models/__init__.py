"""One transformer, the families that map onto it, and the checkpoints that fill it."""
