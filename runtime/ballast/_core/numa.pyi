"""The machine's NUMA nodes, cores and CPUs; the placement of threads; the node of each memory range."""

from collections.abc import Sequence

from . import PybindObject

UNKNOWN_NODE: int
"""Index of the node for CPUs that no node lists."""
ANY_CPU: int
"""The CPU of a thread that is not pinned."""

Range = tuple[int, int]
"""First address, number of bytes."""

class Node(PybindObject):
    def __init__(
        self, index: int, cpus: Sequence[int], cores: Sequence[Sequence[int]], memory_allowed: bool = True
    ) -> None: ...
    @property
    def index(self) -> int: ...
    @property
    def cpus(self) -> list[int]:
        """All CPUs of the node, including CPUs that this process may not use."""
    @property
    def cores(self) -> list[list[int]]:
        """Physical cores, each as the list of its usable sibling threads."""
    @property
    def memory_allowed(self) -> bool: ...

class Topology(PybindObject):
    def __init__(self, nodes: Sequence[Node]) -> None: ...
    @property
    def nodes(self) -> list[Node]: ...
    @property
    def num_cores(self) -> int:
        """Physical cores that the process may use. The properties below also count only usable ones."""
    @property
    def num_cpus(self) -> int: ...
    def node_of(self, cpu: int) -> int:
        """The node of a CPU; UNKNOWN_NODE if no node lists it."""

class NodeThreads(PybindObject):
    def __init__(self, node: int, cpus: Sequence[int]) -> None: ...
    @property
    def node(self) -> int: ...
    @property
    def cpus(self) -> list[int]:
        """One CPU per thread."""

class Placement(PybindObject):
    def __init__(self, nodes: Sequence[NodeThreads]) -> None: ...
    @property
    def nodes(self) -> list[NodeThreads]: ...
    @property
    def num_threads(self) -> int: ...
    @property
    def num_unpinned(self) -> int: ...

def read_topology(root: str = "", cpus: Sequence[int] | None = None) -> Topology:
    """The topology of the machine whose /proc and /sys are under `root`, for a process that may use `cpus`. None: the
    CPUs that this process's main thread may use. Offline and hidden CPUs are omitted."""

def parse_cpu_list(text: str) -> list[int]:
    """Parse a CPU list of the kernel, "0-3,8,10-11"; returns ascending numbers. Text that is not a list returns an
    empty list."""

def place_threads(topology: Topology, num_threads: int) -> Placement:
    """Place threads on cores first, then on sibling threads, spread over the nodes in proportion to their cores;
    threads beyond the last CPU are not pinned. Raises ValueError for num_threads below 1."""

def mempolicy_available() -> bool:
    """Whether the kernel lets this process set memory policies."""

def bytes_per_node(numa_maps: str, maps: str, ranges: Sequence[Range]) -> dict[int, int]:
    """Resident bytes of the ranges by node, from the texts of /proc/self/numa_maps and /proc/self/maps. A mapping that
    is partly in the ranges counts by the fraction of its addresses in them. Releases the GIL."""
