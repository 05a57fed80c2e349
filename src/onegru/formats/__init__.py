"""Files: recognised, read into `Graph` or layers, written."""
