"""Other runtimes, each run in a process of its own."""
