"""The `tokscore` command, one module per subcommand."""
