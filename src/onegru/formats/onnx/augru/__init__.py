"""The GRU with attention in ONNX models: nodes of an operator of onegru's own, and functions that say what it is."""
