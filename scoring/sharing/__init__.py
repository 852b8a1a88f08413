"""Sequences and what they have in common, so that an engine computes it once.

In: sequences that wait for an engine, and the rows that it returns. Out: the sequences that have to be
computed, and from their rows those of all. Must not know: which engine computes, or what is written.
"""
