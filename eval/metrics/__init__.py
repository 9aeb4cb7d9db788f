"""Metrics that `evaluate.load` opens: each folder stands alone and can be pushed to the Hub as it is."""
