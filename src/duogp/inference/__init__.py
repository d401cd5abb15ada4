"""q(u) without gradient descent: closed form, natural gradients, rules for means."""
