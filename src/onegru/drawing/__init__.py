"""Pictures, pages and cards of plain data, for people to look at."""
