"""Read and write ONNX models."""
