"""The second stage of a search: a cross-encoder matches the words of a query with the files of the first hits."""
