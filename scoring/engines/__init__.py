"""Scoring engines, one module each."""
