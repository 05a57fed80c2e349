"""Load, run, stream and describe whole models."""
