"""Structured Identity Mapping: in which order concepts are learned, and why out-of-distribution error can swing.

Everything here runs on NumPy alone; `mlp` and `circles` bring in torch when they are used.
"""
