"""vLLM as an engine.

In: token ids. Out: rows of scores, from logits that never leave the worker.
Must not know: conversations, datasets, or how the parts of a run are planned.
"""
