# SPDX-License-Identifier: Apache-2.0
"""Ask this node's tacticd which tactic to run for a kernel problem.

    import tacticd

    with tacticd.Client() as client:
        answer = client.lookup(key)
        if answer.kind is tacticd.Kind.HIT:
            use(answer.tactic)          # JSON text that the library which runs it understands

Only a hit names a tactic. A default, a miss and every TacticError mean the same to a server: use your
library's default. tacticd.flashinfer does the whole errand for servers that run FlashInfer, and never raises.

The package is a thin layer over libtactic (tactic.h, libtactic(3)): standard library only, no thread, no
signal handler, no output but what the logger "tacticd" is told. libtactic is looked for when the first client
is made: at the path in the environment's TACTICD_LIBRARY, else where the system keeps its libraries.
"""
from tacticd.agree import agreed_table
from tacticd.answers import Answer, Error, Evidence, Kind, TacticError, Wanted
from tacticd.client import TIMEOUT_MS, Client
from tacticd.table import Problem, Row, Table
from tacticd.warm import Step, Warmed, prewarm

__version__ = "0.1.0"
__all__ = ["TIMEOUT_MS", "Answer", "Client", "Error", "Evidence", "Kind", "Problem", "Row", "Step", "Table",
           "TacticError", "Wanted", "Warmed", "agreed_table", "prewarm"]
