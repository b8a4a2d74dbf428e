"""Words every room of the house shares: contracts, records on disk, configuration, statistics.

Importing it sets one environment variable, the only thing that an import does here.  torch's OpenMP threads spin while
they wait, which beside other processes slows everything down tenfold, and OpenMP reads its wait policy once, when torch
is loaded.  A policy that is set already stays.
"""

import os
import sys
import warnings

if "OMP_WAIT_POLICY" not in os.environ:
    if "torch" in sys.modules:
        warnings.warn(
            "torch was loaded before Dreamlens: its threads spin while they wait; set OMP_WAIT_POLICY=PASSIVE first",
            stacklevel=2,
        )
    os.environ["OMP_WAIT_POLICY"] = "PASSIVE"
