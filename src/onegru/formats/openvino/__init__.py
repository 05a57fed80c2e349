"""Read and write OpenVINO IRs."""
