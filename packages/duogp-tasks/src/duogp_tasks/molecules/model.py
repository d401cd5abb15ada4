"""A variational autoencoder of token rows with a latent vector of fixed size.

    encoder   tokens -> transformer -> c channels per position -> linear in all of them -> q(z|x)
    decoder   z -> linear: c channels for every position -> transformer over all positions (the *plan*)
                -> causal transformer over plan + previous tokens -> next token

Every position has its own c × latent block on the way into z and out of it, so the first thing that training
finds is a crude copy, which the transformers refine; a pooled summary takes far longer to become one. The
plan sees no token: it is computed once for a molecule, and a decoding step costs one position of the causal
part.

Greedy decoding of row x gives x back exactly if and only if every token is the arg max given the true ones
before it, so `matches` measures reconstruction in one parallel pass.
"""

from __future__ import annotations

import math
from dataclasses import asdict, dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional

from duogp_tasks.molecules.alphabet import END, PAD, START


@dataclass(frozen=True)
class Architecture:
    """Sizes of the network; `longest` counts the END token."""

    vocabulary: int
    longest: int
    latent: int = 256
    width: int = 256
    heads: int = 4
    channels: int = 32
    encoder_layers: int = 3
    plan_layers: int = 2
    causal_layers: int = 3

    def as_dict(self) -> dict[str, Any]:
        return asdict(self)


class Block(nn.Module):
    """Attention and a two-layer network, each added to the stream after its own normalisation."""

    def __init__(self, width: int, heads: int) -> None:
        super().__init__()
        self.heads = heads
        self.attention_norm = nn.LayerNorm(width)
        self.query_key_value = nn.Linear(width, 3 * width)
        self.attention_out = nn.Linear(width, width)
        self.network_norm = nn.LayerNorm(width)
        self.expand = nn.Linear(width, 4 * width)
        self.contract = nn.Linear(4 * width, width)

    def forward(self, x: Tensor, mask: Tensor | None = None, causal: bool = False) -> Tensor:
        """x [n, length, width]; mask [n, 1, 1, length] is True where a position may be looked at."""
        q, k, v = self._split(x)
        x = x + self._join(functional.scaled_dot_product_attention(q, k, v, mask, is_causal=causal))
        return self._network(x)

    def step(self, x: Tensor, cache: Tensor, position: int) -> Tensor:
        """One position x [n, 1, width] of the causal case.

        Its key and value go into `cache` [2, n, heads, longest, width / heads].
        """
        q, k, v = self._split(x)
        cache[0, :, :, position], cache[1, :, :, position] = k[:, :, 0], v[:, :, 0]
        keys, values = cache[:, :, :, : position + 1]
        x = x + self._join(functional.scaled_dot_product_attention(q, keys, values))
        return self._network(x)

    def _split(self, x: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        n, length, width = x.shape
        qkv = self.query_key_value(self.attention_norm(x)).view(n, length, 3, self.heads, width // self.heads)
        q, k, v = qkv.permute(2, 0, 3, 1, 4).unbind(0)
        return q, k, v

    def _join(self, attended: Tensor) -> Tensor:
        return self.attention_out(attended.transpose(1, 2).flatten(2))

    def _network(self, x: Tensor) -> Tensor:
        return x + self.contract(functional.gelu(self.expand(self.network_norm(x)), approximate="tanh"))


class SequenceVAE(nn.Module):
    """Rows of ids [n, length] ⇄ latent vectors [n, latent]."""

    barred: Tensor

    def __init__(self, architecture: Architecture) -> None:
        super().__init__()
        a = self.architecture = architecture
        self.embed = nn.Embedding(a.vocabulary, a.width)  # shared by both sides
        self.encoder_places = nn.Parameter(torch.zeros(a.longest, a.width))
        self.encoder = nn.ModuleList(Block(a.width, a.heads) for _ in range(a.encoder_layers))
        self.encoder_norm = nn.LayerNorm(a.width)
        self.to_channels = nn.Linear(a.width, a.channels)
        self.to_latent = nn.Linear(a.longest * a.channels, 2 * a.latent)

        self.from_latent = nn.Linear(a.latent, a.longest * a.channels)
        self.from_channels = nn.Linear(a.channels, a.width)
        self.decoder_places = nn.Parameter(torch.zeros(a.longest, a.width))
        self.plan_blocks = nn.ModuleList(Block(a.width, a.heads) for _ in range(a.plan_layers))
        self.causal_blocks = nn.ModuleList(Block(a.width, a.heads) for _ in range(a.causal_layers))
        self.decoder_norm = nn.LayerNorm(a.width)
        self.to_logits = nn.Linear(a.width, a.vocabulary)
        barred = torch.zeros(a.vocabulary).index_fill(0, torch.tensor([PAD, START]), -1e4)
        self.register_buffer("barred", barred, persistent=False)  # a molecule holds neither
        self._initialise()

    def _initialise(self) -> None:
        a = self.architecture
        for parameter in (self.embed.weight, self.encoder_places, self.decoder_places):
            nn.init.normal_(parameter, std=0.5)
        depth = a.encoder_layers + a.plan_layers + a.causal_layers
        for module in self.modules():
            if isinstance(module, Block):  # the stream's variance should not grow with depth
                for layer in (module.attention_out, module.contract):
                    nn.init.normal_(layer.weight, std=1 / math.sqrt(depth * layer.in_features))
                    nn.init.zeros_(layer.bias)
        with torch.no_grad():  # q(z|x) starts narrow: the copy is learnt before the noise matters
            self.to_latent.weight[a.latent :].mul_(0.1)
            self.to_latent.bias[a.latent :] = -3.0

    def posterior(self, rows: Tensor) -> tuple[Tensor, Tensor]:
        """Mean and log variance of q(z | row); rows hold the molecule, END, then PAD."""
        n, length = rows.shape
        present = rows != PAD
        x = self.embed(rows) + self.encoder_places[:length]
        for block in self.encoder:
            x = block(x, present[:, None, None, :])
        channels = self.to_channels(self.encoder_norm(x)) * present[..., None]
        # Absent positions contribute nothing, so only the blocks of the present ones are multiplied.
        used = length * self.architecture.channels
        weight = self.to_latent.weight[:, :used]
        both = functional.linear(channels.reshape(n, used), weight, self.to_latent.bias)
        mean, log_variance = both.float().chunk(2, -1)
        return mean, log_variance.clamp(-10.0, 2.0)

    def plan(self, z: Tensor, length: int) -> Tensor:
        """What z says about the first `length` positions, [n, length, width]."""
        x = self.from_latent(z).view(len(z), self.architecture.longest, -1)
        x = self.from_channels(functional.gelu(x, approximate="tanh")) + self.decoder_places
        for block in self.plan_blocks:
            x = block(x)
        return x[:, :length]

    def logits(self, z: Tensor, previous: Tensor) -> Tensor:
        """Scores of every token given the tokens before it; `previous` starts with START."""
        x = self.plan(z, previous.shape[1]) + self.embed(previous)
        for block in self.causal_blocks:
            x = block(x, causal=True)
        return self._scores(x)

    def _scores(self, x: Tensor) -> Tensor:
        return self.to_logits(self.decoder_norm(x)) + self.barred

    def matches(self, rows: Tensor) -> Tensor:
        """Whether greedy decoding of the posterior mean gives each row back, [n]."""
        guesses = self.logits(self.posterior(rows)[0], shifted(rows)).argmax(-1)
        return ((guesses == rows) | (rows == PAD)).all(-1)

    @torch.no_grad()
    def greedy(self, z: Tensor) -> Tensor:
        """The most probable token at every position, [n, longest] ids; PAD behind END."""
        a = self.architecture
        plan = self.plan(z, a.longest)
        n, head = len(z), a.width // a.heads
        caches = [plan.new_zeros(2, n, a.heads, a.longest, head) for _ in self.causal_blocks]
        rows = torch.full((n, a.longest), PAD, dtype=torch.long, device=z.device)
        token = torch.full((n,), START, dtype=torch.long, device=z.device)
        for position in range(a.longest):
            x = plan[:, position : position + 1] + self.embed(token)[:, None]
            for block, cache in zip(self.causal_blocks, caches, strict=True):
                assert isinstance(block, Block)
                x = block.step(x, cache, position)
            chosen = self._scores(x[:, 0]).argmax(-1)
            ended = (token == END) | (token == PAD)
            token = torch.where(ended, torch.full_like(chosen, PAD), chosen)
            rows[:, position] = token
            if bool(((token == END) | (token == PAD)).all()):
                break
        return rows


def shifted(rows: Tensor) -> Tensor:
    """The decoder's input: START and all tokens but the last."""
    return torch.cat([torch.full_like(rows[:, :1], START), rows[:, :-1]], dim=1)


def divergence(mean: Tensor, log_variance: Tensor) -> Tensor:
    """KL(N(mean, e^log_variance) ‖ N(0, I)) per row."""
    return 0.5 * (mean.square() + log_variance.exp() - 1.0 - log_variance).sum(-1)
