"""Two top-k lists to limits of their divergences.

In: ids and logprobs of both models as arrays. Out: an interval of every measure for every token.
Must not know: datasets, groups or how results are printed.
"""
