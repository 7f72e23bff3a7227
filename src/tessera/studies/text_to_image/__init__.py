"""Questions put to SDXL and its kin: where pixels and words act, and whether concepts lie apart inside."""
