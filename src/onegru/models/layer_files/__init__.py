"""Read layers from files, and convert the files."""
