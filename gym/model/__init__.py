"""The policy model server: passes model calls on and keeps the ledger of its calls.

Begin with `gym.model.part`; `gym.model.ledger` has the rows.
"""
