"""Checking models: onegru against other runtimes, and models against each other."""
