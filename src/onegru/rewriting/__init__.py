"""Rewrite models without changing their function."""
