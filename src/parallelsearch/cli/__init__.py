"""The command line: names to objects. `app` puts the commands together; each other module holds one or two of them."""
