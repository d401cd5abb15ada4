"""Studies: ask and tell in any search space."""

from duogp.bo.studies.goals import Goals, Limit
from duogp.bo.studies.proposers import STRATEGIES
from duogp.bo.studies.study import Study
from duogp.bo.studies.trials import Trial

__all__ = ["STRATEGIES", "Goals", "Limit", "Study", "Trial"]
