"""Scoring engines behind one contract.

In: token ids and what to score. Out: logprobs, ranks, entropies and top-k lists as arrays, checked.
Must not know: conversations, datasets or what is computed from the rows.
"""
