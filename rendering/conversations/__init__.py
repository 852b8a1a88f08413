"""Records once their format is known.

In: a parsed record. Out: a conversation, or a trace whose branches share their beginnings.
Must not know: files, formats, templates or tokenizers.
"""
