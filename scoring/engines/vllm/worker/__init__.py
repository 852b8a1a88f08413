"""Code that runs inside vLLM's workers: prompt rows scored in one pass, a bounded number at a time.

In: hidden states of a step of the model, and what requests want of their prompts.
Out: rows of prompts as arrays.
Must not know: datasets, files, and the engine that sends the requests.
"""
