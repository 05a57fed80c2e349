"""GRUs kept in fewer bits: which of them in what, what that costs and gains."""
