"""Candidates that are wrong in one way each."""
