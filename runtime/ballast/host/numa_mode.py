"""The values of the option `numa`."""

from typing import Literal

NumaMode = Literal["auto", "single", "off"]
"""auto: threads and weights are spread over the nodes; single: all of them on one node if it has enough cores for the
threads, otherwise as auto; off: nothing is bound to a node."""
