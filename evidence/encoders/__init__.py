"""Encoders with spaces of their own, side by side: is the direct sum any good, with scales that need no labels?"""
