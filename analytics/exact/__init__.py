"""Two models compared over the whole vocabulary.

In: the tokens of two score datasets, and what both models say of each. Out: a table with a row per token,
and its means, percentiles and errors.
Must not know: how a model is run, or how numbers are printed.
"""
