"""Detect, read and write model and layer files."""
