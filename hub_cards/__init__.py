"""Publishing on the Hub: models, adapters, galleries, metrics and the demo, each with a card made from its files."""
