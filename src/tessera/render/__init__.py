"""Scenes become pixels."""
