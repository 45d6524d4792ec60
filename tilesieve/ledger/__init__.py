"""What a step must cost, and under which roof it sits. Integers and plain Python: no torch is imported here.

ledger.py adds up observed calls; step.py writes one decode step down from the operators' own cost.py; roofline.py
turns rows into time floors on a chip of chips.py; models.py has the shapes; tables.py draws (needs rich).
"""

from tilesieve.ledger.ledger import Ledger
from tilesieve.ledger.rows import Row, total

__all__ = ["Ledger", "Row", "total"]
