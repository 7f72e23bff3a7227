"""The command line: one file per verb; no other package imports it."""
