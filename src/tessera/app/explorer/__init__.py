"""The explorer page: set objects, watch models draw them, and see what moves a pixel."""
