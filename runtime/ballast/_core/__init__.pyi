"""The compiled module. `make lint` checks these stubs against it."""

from typing import Never, type_check_only

import numpy as np
from numpy.typing import NDArray

from . import handoff as handoff
from . import kernels as kernels
from . import model as model
from . import numa as numa
from . import sampling as sampling
from . import sched as sched

_F32 = NDArray[np.float32]
_Plane = NDArray[np.float32] | NDArray[np.float16]
_I32 = NDArray[np.int32]

@type_check_only
class PybindType(type):
    """The metaclass of pybind11's classes."""

@type_check_only
class PybindObject(metaclass=PybindType):
    """The base class of every class bound by pybind11."""

    def __init__(self, *args: Never, **kwargs: Never) -> None:
        """Raises TypeError: a class without its own __init__ can be created only by C++."""

class InvariantError(RuntimeError): ...
