"""Training: arguments, data, losses, adapters and the Trainer subclass."""
