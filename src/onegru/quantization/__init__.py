"""Store GRU weights in fewer bits, and measure accuracy and speed."""
