"""The files of a model, and whether it is a causal language model that can be scored.

In: config.json and the names and shapes of the weights. Out: a checked configuration, or why it is refused.
Must not know: engines, or what is scored.
"""
