from . import kernels as kernels
from . import sched as sched

class InvariantError(RuntimeError): ...
