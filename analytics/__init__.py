"""Score tables to aggregates and divergences."""
