"""Draw HTML pages and notebook cards from plain data."""
