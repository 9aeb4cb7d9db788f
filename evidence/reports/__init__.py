"""The paper's tables and figures from result files, next to its published values."""
