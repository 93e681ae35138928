"""The fleet over HTTP: questions to its database by a few connections, as on the command line.

The questions are those of `opdbus.fleet.questions`. Read `fleet_routes.py` first.
"""
