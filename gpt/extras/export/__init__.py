"""Trained models in formats that other programs read."""
