"""The paper's study in miniature: every variant tuned alike, trained with several seeds, evaluated, reported."""
