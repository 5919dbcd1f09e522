"""Losses and scores of a text."""
