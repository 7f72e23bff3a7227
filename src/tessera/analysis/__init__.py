"""Which pixels and which conditions move a pixel, for any denoiser."""
