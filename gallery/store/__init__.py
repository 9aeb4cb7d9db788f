"""What is stored of clips: the tables of a gallery and their columns, the files that clips are read from, still
pictures."""
