"""The mode ``"PYTHON"``: the graph as it stands, evaluated node by node.

PyTensor's own ``"FAST_COMPILE"`` spends some seconds on rewriting a private step, which is most of the time
that a test of a whole fit would take. What the rewrites and compilers make of a graph is tested on the
backends that users have.
"""

from __future__ import annotations

from pytensor.compile.mode import Mode, predefined_modes, register_mode

if "PYTHON" not in predefined_modes:
    register_mode("PYTHON", Mode(linker="py", optimizer=None))
