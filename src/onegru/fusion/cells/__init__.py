"""Recognize GRU cells by their function."""
