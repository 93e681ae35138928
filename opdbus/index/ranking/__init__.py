"""Score arithmetic: boosts, confidence features, the weighted sum, and calibration.

Owns the formulas and their weights (`opdbus/tables/calibration.tsv`). Pure, but for reading that
table: no object, database or query is read here.
"""
