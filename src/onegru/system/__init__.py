"""Files, written atomically and read with limits, child processes, and Ctrl-C."""
