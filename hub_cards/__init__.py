"""Publishing on the Hub: models, adapters, galleries, metrics and searches, with cards generated from their files."""
