"""Write OpenVINO IRs."""
