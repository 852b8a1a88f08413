"""Ids that are given for rows to be scored at, beside the token that is there.

In: ids by row, logits, and values at more ids than those of one sequence.
Out: one matrix of ids for the rows of several sequences, their logits, and the values at each one's own ids.
Must not know: sequences, engines, models, files.
"""
