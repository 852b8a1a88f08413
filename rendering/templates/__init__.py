"""A chat template run so that every character keeps its origin.

In: a template and messages. Out: the text transformers prints, with message and field of each character.
Must not know: tokens, datasets or files.
"""
