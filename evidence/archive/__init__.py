"""An archive as a new user has it, made by machine, with questions written before any of them was asked."""
