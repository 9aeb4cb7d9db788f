"""Publishing on the Hub: models, adapters, galleries, metrics and searches, each with a card made from its files."""
