"""RL's records of a job: which rollouts there are, what became of them, what is still owed.

Begin with `rl.records.recovery_ledger`; `rl.records.inventories` compares it with the servers.
"""
