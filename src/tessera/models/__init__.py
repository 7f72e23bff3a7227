"""Noisy pixels become clean ones."""
