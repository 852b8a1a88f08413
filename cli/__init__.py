"""The `tokscore` command, one module per subcommand.

In: words of a command line. Out: a result on stdout, notes and errors on stderr, an exit code.
Must not know: how anything is computed; it parses, calls and prints.
"""
