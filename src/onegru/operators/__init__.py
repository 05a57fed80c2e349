"""The specified operators as data, and their conversion to the canonical form."""
