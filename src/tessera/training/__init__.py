"""Images teach the denoiser: loss, learning rate, running averages, the loop, the run folder."""
