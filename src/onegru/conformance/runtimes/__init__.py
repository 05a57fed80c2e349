"""The runtimes that take the kit's cases, each in a separate process."""
