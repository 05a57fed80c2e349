"""Read the loops of every format as recurrences."""
