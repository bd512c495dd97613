"""The larger families of commands, one module each; `cli` hangs them into the command line."""
