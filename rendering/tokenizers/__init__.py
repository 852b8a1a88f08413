"""Texts to ids, by the quickest library that is proven to give what transformers' tokenizer gives.

In: a loaded tokenizer. Out: the ids of texts, and which library made them.
Must not know: templates, conversations, owners of tokens, input formats.
"""
