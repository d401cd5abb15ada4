"""Search spaces: real, integer and categorical parameters, conditions, linear constraints."""

from duogp.bo.spaces.parameters import Categorical, Integer, Linear, Parameter, Real, Value
from duogp.bo.spaces.reading import read_space, space_of_arguments
from duogp.bo.spaces.space import Point, Space

__all__ = [
    "Categorical",
    "Integer",
    "Linear",
    "Parameter",
    "Point",
    "Real",
    "Space",
    "Value",
    "read_space",
    "space_of_arguments",
]
