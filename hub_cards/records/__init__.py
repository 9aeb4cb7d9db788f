"""The records published with weights: of their training, and of their evaluations."""
