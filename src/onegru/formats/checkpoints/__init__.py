"""Read checkpoints of PyTorch, and safetensors files."""
