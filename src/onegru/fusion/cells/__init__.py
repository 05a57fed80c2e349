"""Recognize GRU cells by the function that they compute."""
