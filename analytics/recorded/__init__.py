"""Recorded logprobs against those of the model that scores, or of a trainer.

In: a dataset, or files, whose tokens carry logprobs. Out: how far they are from others of the same tokens.
Must not know: engines, or how tables are printed.
"""
