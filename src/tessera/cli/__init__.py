"""The command line: one file per verb, imported by nobody."""
