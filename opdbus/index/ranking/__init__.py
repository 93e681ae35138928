"""Score arithmetic: boosts, confidence features, the weighted sum, and calibration.

Owns the formulas and their weights (`opdbus/tables/calibration.tsv`). Pure: no object, file or
query is read here.
"""
