"""What is said and shown in clips: cues of subtitles and transcripts, folded so that they can be compared."""
