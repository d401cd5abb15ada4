"""Hand-written training steps and their backward passes."""
