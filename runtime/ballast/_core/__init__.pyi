from . import handoff as handoff
from . import kernels as kernels
from . import model as model
from . import numa as numa
from . import sched as sched

class InvariantError(RuntimeError): ...
