"""Files and processes: written whole, read with limits, run apart."""
