"""Text that is no conversation: whole, or cut into windows as perplexity tools cut it.

In: a text and what a run says of chunks. Out: its ids, of no message, and which of them count.
Must not know: files, formats, templates or engines.
"""
