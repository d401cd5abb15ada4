"""From a table to a trained model: Dataset → Plan → Builder → Model → GP."""
