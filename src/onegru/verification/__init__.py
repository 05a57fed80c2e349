"""Checking that a model computes what it should, and locating the first GRU node that does not."""
