"""The page you can play with: place things, watch models draw them, and see what moves a pixel."""
