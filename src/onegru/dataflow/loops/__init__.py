"""Loops of every format, read as recurrences."""
