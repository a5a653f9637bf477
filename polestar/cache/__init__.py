"""What a decode keeps between passes, and the policies that say when it is recomputed."""
