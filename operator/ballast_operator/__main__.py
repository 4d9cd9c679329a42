"""`python -m ballast_operator`."""

import sys

from ballast_operator.cli import main

sys.exit(main())
