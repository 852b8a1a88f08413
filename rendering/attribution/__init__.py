"""Characters to tokens, and tokens to owners.

In: a conversation and its printed text. Out: ids with message, field, content and who wrote them.
Must not know: input formats, files or datasets on disk.
"""
