"""Embeds a benchmark, or loads vectors of any model, together with the relevant pairs."""
