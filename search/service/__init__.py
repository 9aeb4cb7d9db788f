"""The search as a service on one's own machine: a typed HTTP API and a page that speaks to it.

Nothing is imported here; `scalar serve GALLERY` starts it.
"""
