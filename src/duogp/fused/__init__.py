"""Hand-written training steps and their backward passes; `table.find` is the one lookup."""
