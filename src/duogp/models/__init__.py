"""Terms of the loss: prior mean, basis, mixing, likelihood, objective."""
