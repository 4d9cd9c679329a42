"""The values of the option `numa`."""

from typing import Literal

NumaMode = Literal["auto", "off"]
"""auto: a share of the threads and of the weights on each node; off: nothing is bound to a node."""
