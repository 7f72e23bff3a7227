"""The page you can play with: location objects, watch models draw them, and see what moves a pixel."""
