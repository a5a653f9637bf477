"""Block schedulers of single methods."""
