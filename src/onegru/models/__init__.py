"""Whole models: loading, running, streaming and describing them."""
