"""The runtimes that take the kit's cases, each in a process of its own."""
