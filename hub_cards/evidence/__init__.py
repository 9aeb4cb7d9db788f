"""The files published with weights about their training and their results."""
