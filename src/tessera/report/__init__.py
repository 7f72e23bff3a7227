"""Records become tables."""
