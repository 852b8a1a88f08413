"""Fields that formats have in common, read and checked.

In: JSON values of a record. Out: messages, tools, token ids, logprobs, and trees of them.
Must not know: single formats, files, templates or tokenizers.
"""
