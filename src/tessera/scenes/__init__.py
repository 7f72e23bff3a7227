"""What is in the picture, before any pixel."""
