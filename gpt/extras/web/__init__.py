"""Pages: the code and style of all of them, and what makes one document of these."""
