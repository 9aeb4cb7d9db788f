"""Publishing on the Hub: adapters, models, galleries, metrics and the demo, each with a card made of its own files."""
