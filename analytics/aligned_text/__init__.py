"""Two models with different tokenizers compared by the text that both read.

In: two score datasets of the same conversations. Out: spans of text with the logprob of either side.
Must not know: commands, how anything is printed.
"""
