"""OpenVINO's IRs as flows, and back."""
