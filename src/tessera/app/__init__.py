"""Report and explorer: pages for people."""
