"""Run ONNX models in ONNX Runtime, with onegru for their GRU nodes."""
