"""TensorFlow Lite's files: read, and put into ONNX's operators, in which their GRUs are found."""
