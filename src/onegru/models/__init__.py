"""Whole models: loaded, run, streamed, described."""
