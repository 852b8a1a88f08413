"""Options that several commands share, and those made of settings.

In: the settings of the rooms. Out: annotations of parameters. Must not know: any command.
"""
