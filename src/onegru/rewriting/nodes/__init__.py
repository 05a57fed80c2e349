"""Change GRU nodes of ONNX models in memory."""
