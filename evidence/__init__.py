"""Evidence for the paper's claims. Not part of the installed package, and nothing in it imports this."""
