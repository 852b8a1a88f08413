"""Conversations to attributed tokens."""
