"""Composed clips: real photographs, sounds and recorded words, put together as generated clips are."""
