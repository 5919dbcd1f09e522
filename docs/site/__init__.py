"""Build the site from docs/: the chapters of the book executed, the references generated, the rest
as it is.
"""
