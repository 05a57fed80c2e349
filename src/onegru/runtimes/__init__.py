"""Other runtimes: their known issues, and onegru inside them."""
