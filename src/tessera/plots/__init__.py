"""One style for figures: image grids, curves, heat maps."""
