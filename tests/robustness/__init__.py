"""Minutes of attacks, lost providers and short-lived processes; each ends with 1 on a failure.

Run one as `PYTHONPATH=tests python -m robustness.soak`; `make test-all` runs them all.
"""
