"""Read loops of every format as recurrences."""
