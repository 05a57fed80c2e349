"""Create GRU nodes and their inputs."""
