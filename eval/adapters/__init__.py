"""Models of this project in the evaluations of other libraries."""
