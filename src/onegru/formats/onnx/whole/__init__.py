"""ONNX models that ONNX Runtime runs as a whole, their GRU nodes by onegru."""
