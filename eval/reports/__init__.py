"""What result files become: the paper's tables and figures, and what else was measured."""
