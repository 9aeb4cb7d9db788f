"""What all commands share. Imports nothing that is slow, so that `--help` is quick and Ctrl-C is heard early."""
