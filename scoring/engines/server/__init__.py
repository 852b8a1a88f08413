"""Scoring by a served model: token ids go to an address, logprobs come back.

In: token sequences and the addresses of servers. Out: the contract of engines, and what the server is.
Must not know: datasets, templates, other engines.
"""
