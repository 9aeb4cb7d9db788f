"""Measurements of time and memory: `python -m evidence speed NAME`."""
