"""One thread, as in the tests of duogp."""

import torch

torch.set_num_threads(1)
