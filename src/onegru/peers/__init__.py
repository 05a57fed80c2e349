"""Other runtimes, each in a separate process."""
