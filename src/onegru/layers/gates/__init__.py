"""The gate values of a layer at each step."""
