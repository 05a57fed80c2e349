"""Reading files into graphs of GRU nodes and what lies between them."""
