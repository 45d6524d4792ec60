"""Timing operators against baselines on the same inputs. Empty until the first kernel."""
