"""Operators, one folder each. `catalogue.py` names them in flow order; `run.py` dispatches."""
