"""Requirements of the Hub for everything published: a valid card, one commit, a token with write access."""
