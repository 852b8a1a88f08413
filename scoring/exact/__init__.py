"""Two models compared over the whole vocabulary, token by token.

In: token ids, and plans of two engines. Out: divergences of the two distributions behind each wanted token.
Must not know: conversations, datasets, or what becomes of the values.
"""
