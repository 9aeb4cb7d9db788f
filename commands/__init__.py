"""Code shared by all commands. Imports nothing slow, so that `--help` is quick and Ctrl-C works early."""
