"""A kernel, two bases, a likelihood, two objectives and a prior mean, as a user writes them."""

import torch
from torch import nn

from duogp.bases import Basis, Coupled, Features, FrozenPosterior, Probe
from duogp.kernels import Kernel
from duogp.likelihoods import Likelihood
from duogp.means import Mean
from duogp.numerics.factorisation import norm2
from duogp.numerics.parameters import Positive
from duogp.objectives import objective


# [kernel]
class Cauchy(Kernel):
    """k(x, x′) = 1 / (1 + ‖x − x′‖² / width²), with a learned width."""

    def __init__(self, width=1.0):
        super().__init__()
        self.width = Positive(width)

    def forward(self, x1, x2):
        squares = (x1.unsqueeze(-2) - x2.unsqueeze(-3)).square().sum(-1)
        return 1 / (1 + squares / self.width().to(x1)[..., None, None].square())

    def diag(self, x):
        return x.new_ones(()).expand(*torch.broadcast_shapes(self.width().shape, x.shape[:-2]), x.shape[-2])


# [basis]
class Coefficients(Basis):
    """mean k(x, Z)a   residual k − ‖φ‖²   explained ‖L_Sᵀφ‖²   ½ aᵀK a + KL(0, S ‖ I),   φ = L⁻¹ k(Z, x)."""

    has_closed_form = True  # a and S are quadratic in the ELBO, with the priors below
    mean_shares_features = False  # the mean is made of k(Z, x), the variance of φ

    def __init__(self, kernel, inducing, q):
        super().__init__()
        self.kernel, self.q = kernel, q
        self.inducing = nn.Parameter(inducing)

    def factors(self, numerics):
        z = self.inducing.double()
        return numerics.factor(self.kernel(z, z))  # L Lᵀ = K + jitter

    def features(self, x, factors):
        k = self.kernel(self.inducing, x)
        phi = factors.whiten(k)
        return Features(mean=k, explained=phi, residual=self.kernel.diag(x) - norm2(phi))

    def kl(self, factors, q):
        a = q.mean
        rkhs_norm = (factors.L.mT @ a.unsqueeze(-1)).square().sum((-2, -1))  # aᵀK a
        return q.penalty() - 0.5 * a.square().sum(-1) + 0.5 * rkhs_norm

    def mean_prior_root(self, factors):
        return factors.L.mT  # ½‖Lᵀa‖² is the penalty of the mean; that of S is KL(0, S ‖ I)

    def frozen(self, factors):
        probe = Probe(self.kernel, self.inducing.detach())
        return FrozenPosterior(
            prior=self.kernel,
            mean_probe=probe,
            mean_weights=self.q.mean.to(factors.L),
            residual_probe=probe,
            residual_root=factors.L_inv,
            residual_jitter=factors.jitter.unsqueeze(-1),
            explained_probe=probe,
            explained_root=self.q.root().to(factors.L).mT @ factors.L_inv,
        )


# [basis without a closed form]
class WidePrior(Coupled):
    """The coupled basis with the penalty KL(m, S ‖ c²I), c learned; it declares no closed form."""

    def __init__(self, kernel, inducing, q):
        super().__init__(kernel, inducing, q)
        self.width = Positive(2.0)

    def kl(self, factors, q):
        c2 = self.width().square()
        squares = q.trace() + q.mean.square().sum(-1)
        return 0.5 * (squares / c2 + q.size * c2.log() - q.log_det() - q.size)


# [basis of u itself]
class Unwhitened(Basis):
    """mean k(x, Z)K⁻¹m    residual k − ‖φ‖²    explained φᵀL⁻¹SL⁻ᵀφ    KL(m, S ‖ K),    φ = L⁻¹ k(Z, x)."""

    has_closed_form = True

    def __init__(self, kernel, inducing, q):
        super().__init__()
        self.kernel, self.q = kernel, q
        self.inducing = nn.Parameter(inducing)

    def factors(self, numerics):
        z = self.inducing.double()
        return numerics.factor(self.kernel(z, z))

    def features(self, x, factors):
        phi = factors.whiten(self.kernel(self.inducing, x))
        psi = factors.L_inv.mT @ phi  # K⁻¹ k(Z, x)
        return Features(mean=psi, explained=psi, residual=self.kernel.diag(x) - norm2(phi))

    def kl(self, factors, q):
        return q.penalty_against(factors.L_inv, factors.half_log_det())  # KL(m, S ‖ K)

    def prior_root(self, factors):
        return factors.L_inv  # VᵀV = K⁻¹

    def frozen(self, factors):
        probe, K_inv = Probe(self.kernel, self.inducing.detach()), factors.L_inv.mT @ factors.L_inv
        return FrozenPosterior(
            prior=self.kernel,
            mean_probe=probe,
            mean_weights=(K_inv @ self.q.mean.to(K_inv).unsqueeze(-1)).squeeze(-1),
            residual_probe=probe,
            residual_root=factors.L_inv,
            residual_jitter=factors.jitter.unsqueeze(-1),
            explained_probe=probe,
            explained_root=self.q.root().to(K_inv).mT @ K_inv,
        )


# [likelihood]
class Laplace(Likelihood):
    """p(y|f) = exp(−|y − f|/s) / 2s, with a learned scale s."""

    def __init__(self):
        super().__init__()
        self.scale = Positive(0.5)

    def log_prob(self, y, f):
        s = self.scale()[..., None, None]
        return -(y - f).abs() / s - (2 * s).log()


# [likelihood, more of it]
class LaplaceWithMoments(Laplace):
    """The same with the moments of y, for predictions of y, and a draw of y, for samples with noise."""

    def conditional_moments(self, f):
        return f, (2 * self.scale().square())[..., None, None].expand_as(f)

    def sample(self, f, generator):
        u = torch.rand(f.shape, generator=generator, dtype=torch.float64).to(f) - 0.5
        return f - self.scale()[..., None, None] * u.sign() * torch.log1p(-2 * u.abs())


# [objective]
def half_and_half(p, f, y):
    """½ E log p(y|f) + ½ log E p(y|f): half way from the ELBO to the predictive objective."""
    return 0.5 * p.expected_log_prob(y, f.mean, f.variance) + 0.5 * p.log_predictive(y, f.mean, f.variance)


# [objective with a trait]
@objective(reads="variance")
def three_quarters(p, f, y):
    """¼ E log p(y|f) + ¾ log E p(y|f); it needs the variance of a row, not its two parts."""
    return 0.25 * p.expected_log_prob(y, f.mean, f.variance) + 0.75 * p.log_predictive(y, f.mean, f.variance)


# [mean]
class Ramp(Mean):
    """μ(x) = slope · x₁, with a learned slope."""

    def __init__(self, slope=0.0):
        super().__init__()
        self.slope = nn.Parameter(torch.tensor(float(slope)))

    def forward(self, x):
        return self.slope[..., None].to(x) * x[..., 0]


# [end]
CLASSES = [
    Cauchy,
    Coefficients,
    Unwhitened,
    WidePrior,
    Laplace,
    LaplaceWithMoments,
    Ramp,
    half_and_half,
    three_quarters,
]
