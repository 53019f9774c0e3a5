"""How the two demo models were trained."""
