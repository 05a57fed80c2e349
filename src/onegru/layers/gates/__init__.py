"""What the gates of a layer do, step by step."""
