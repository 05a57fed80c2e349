"""Other runtimes in this process: what they get wrong, and onegru inside them."""
