"""Records become tables and pages."""
