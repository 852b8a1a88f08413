"""How the messages of a record reach the template: as they are, or as a server shows them.

In: messages, a template. Out: the messages that it prints, with what was changed in each.
Must not know: formats, tokens.
"""
