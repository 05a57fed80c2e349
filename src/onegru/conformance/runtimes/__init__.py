"""The runtimes that take the suite's cases, each in a separate process."""
