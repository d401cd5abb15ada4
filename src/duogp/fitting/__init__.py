"""From a table to a trained model."""
