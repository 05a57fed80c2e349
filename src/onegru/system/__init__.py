"""Files, written atomically and read with limits, and child processes."""
