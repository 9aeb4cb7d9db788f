"""What the Hub asks of whatever is published: a card by its rules, one commit, a token that may write."""
