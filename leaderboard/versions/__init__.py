"""The database's schema, one revision a file, in the order of their numbers."""
