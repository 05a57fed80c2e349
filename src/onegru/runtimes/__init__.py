"""Other runtimes, each behind the same few methods, and apart from this process."""
