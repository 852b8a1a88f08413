"""One conversation, token by token.

In: rows of tokens and scores. Out: what is known of every token and message, and how far each stands out.
Must not know: pages, terminals, or other conversations.
"""
