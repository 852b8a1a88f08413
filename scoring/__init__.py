"""Attributed tokens to logprobs."""
