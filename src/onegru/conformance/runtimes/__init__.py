"""Runtimes that run the cases of the suite, each in a separate process."""
